"""A device map is handed to transformers; the tokens are the same."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sweeping import go

from attention.errors import InvalidValue
from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.presets import load
from experiments.store.study import Study

MISSING = not all(map(importlib.util.find_spec, ("accelerate", "psutil")))


@pytest.mark.skipif(MISSING, reason="accelerate or its psutil is missing")
@pytest.mark.parametrize("device_map", ["auto", "cpu"])
def test_the_same_tokens_with_a_map(
    tmp_path: Path, tiny_config: Callable[..., Config], device_map: str
) -> None:
    tokens = []
    for name, more in (("plain", {}), ("mapped", {"device_map": device_map})):
        config = tiny_config(limit=2, backends="full,quest", budgets="32", **more)
        outcome, _ = go(config, tmp_path / name)
        assert outcome.manifest["config"]["device_map"] == more.get("device_map")
        study = Study.open(tmp_path / name)
        records = [study.usable(run) for run in study.runs()]
        tokens.append([record.trace().new_ids for record in records if record])
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 4
    where = outcome.manifest["device"]
    assert where == ("cuda:0" if torch.cuda.is_available() and device_map == "auto" else "cpu")


def test_what_a_map_cannot_be(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.find(str(tiny_model))
    with pytest.raises(InvalidValue, match="--device or --device-map"):
        load("demo", {"device": "cpu", "device_map": "auto"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidValue, match="pip install accelerate"):
        models.load(source, "float32", "cpu", "auto")
    monkeypatch.undo()
    with pytest.raises(InvalidValue, match="device_map"):
        models.load(source, "float32", "cpu", "nonsense")
