"""Other releases of vLLM than those whose internals we extend are refused, without vLLM."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from attention.errors import InvalidValue


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "0.320.0", "1.0.0"])
def test_other_releases_are_refused_by_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ModuleType("vllm")
    engine.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", engine)
    for name in [name for name in sys.modules if name.startswith("lil.serving.vllm")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidValue, match=rf"vllm = '{version}': expected 0\.32\.\*"):
        importlib.import_module("lil.serving.vllm.sparse.worker")
