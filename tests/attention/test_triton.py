"""The engines for GPUs where none is: Triton in its interpreter, a stand-in of flash-attn."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import pytest
import torch

from attention.engines import select
from attention.errors import InvalidValue

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the extra triton"
)


def run(*command: str, **environment: str) -> None:
    """Another Python with these variables besides its own."""
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**variables, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As if both packages were installed, a good GPU were there and no interpreter wanted."""
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: object) -> object:
        if name in ("triton", "flash_attn"):
            return importlib.machinery.ModuleSpec(name, None)
        return real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))  # noqa: ARG005
    monkeypatch.setenv("CC", "cc")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return monkeypatch


def test_a_gpu_is_read_by_triton_and_nothing_else_is(there: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert select("auto", GPU, dtype).name == "triton"
    assert select("auto", GPU, torch.float64).name == "torch"
    assert select("auto", torch.device("meta"), torch.float32).name == "torch"
    assert select("flash", GPU, torch.float16).name == "flash"
    before = select("auto", CPU, torch.float32).name
    assert before in ("cpp", "torch")
    there.setenv("TRITON_INTERPRET", "1")
    assert select("auto", CPU, torch.float32).name == before
    assert select("triton", CPU, torch.float32).name == "triton"


def test_what_is_missing_is_named(there: pytest.MonkeyPatch) -> None:
    def refused(name: str, device: torch.device, dtype: torch.dtype) -> str:
        with pytest.raises(InvalidValue) as error:
            select(name, device, dtype)
        return str(error.value)

    assert "float16, bfloat16, float32, not float64" in refused("triton", GPU, torch.float64)
    assert "a model on a CUDA device, not on cpu" in refused("triton", CPU, torch.float32)
    assert "float16 or bfloat16, not float32" in refused("flash", GPU, torch.float32)
    with there.context() as now:
        now.delenv("CC")
        now.setenv("PATH", "")
        assert "a C compiler" in refused("triton", GPU, torch.float16)
        assert "which expects a C" in refused("flash", GPU, torch.float16)
        assert select("auto", GPU, torch.float16).name == "torch"
    with there.context() as now:
        now.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))  # noqa: ARG005
        assert "capability 8.0 or higher, not 7.5" in refused("triton", GPU, torch.float16)
    there.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds none" in refused("triton", GPU, torch.float16)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("kernels", ["gpu", "gpu_choice"])
def test_steps_whose_lengths_are_on_the_device(kernels: str) -> None:
    run("-m", "pytest", f"tests/attention/test_{kernels}.py", TRITON_INTERPRET="1")
