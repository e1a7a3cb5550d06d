"""Sweeps whose decode steps are compiled: the same runs, and a manifest that says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from sweeping import Make, go
from test_sweep import tokens_of

from attention import Full
from attention.patching import compiled as steps
from experiments.grid import models
from experiments.store import manifest
from experiments.sweep.decoder import AS_IT_IS, ELSEWHERE, NOT_COMPILED, compile_step
from lil.decoding import compiling

GRID: dict[str, Any] = {
    "backends": "full,h2o",
    "budgets": "32",
    "dtype": "float64",
    "limit": 3,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def loaded(tiny_model: Path) -> models.LoadedModel:
    """A model as workers have it."""
    return models.load(models.find(str(tiny_model)), "float64", "cpu")


def test_what_becomes_of_compiling_is_said(
    loaded: models.LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    calls = []

    def raises(*_: Any) -> None:
        calls.append(1)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(steps, "_make", raises)
    assert compile_step(loaded, Full(), "off", 1e9) == "off"
    assert compile_step(loaded, Full(), "auto", 10) == (f"{AS_IT_IS}: too little is left to decode")
    assert not calls
    for mode, left in (("auto", 1e9), ("on", 0)):
        outcome = compile_step(loaded, Full(), mode, left)
        assert outcome == f"{NOT_COMPILED}: RuntimeError: no compiler"
    assert len(calls) == 2
    with FileLock(steps.user_cache("steps") / f"{steps.key(loaded.model)}.pt2.lock"):
        assert compile_step(loaded, Full(), "auto", 1e9) == ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_compiled_sweep_has_the_same_runs(
    workers: int, tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIL_CACHE", str(tmp_path / "cache"))
    go(tiny_config(**GRID, compile="off"), tmp_path / "off")
    assert manifest.read(tmp_path / "off")["compile"] == "off"
    for folder, outcome in (("first", "compiled in "), ("again", "kept from earlier")):
        go(tiny_config(**GRID, compile="on", workers=workers), tmp_path / folder)
        assert manifest.read(tmp_path / folder)["compile"].startswith(outcome)
        assert tokens_of(tmp_path / folder) == tokens_of(tmp_path / "off")


def test_a_sweep_that_cannot_compile_says_so_once(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIL_CACHE", "/dev/null/there")
    _, notes = go(tiny_config(**GRID, compile="on"), tmp_path)
    (note,) = [note for note in notes.notes if "compiled" in note]
    assert note.startswith(
        f"steps of {tiny_config(**GRID).models[0]} were {NOT_COMPILED}: /dev/null"
    )
    _, notes = go(tiny_config(**GRID, compile="auto"), tmp_path / "auto")  # nobody tried
    assert not [note for note in notes.notes if "compiled" in note]
    monkeypatch.setattr(compiling, "pays", lambda *_, **__: True)
    _, notes = go(tiny_config(**GRID, compile="auto"), tmp_path / "tried")
    assert len([note for note in notes.notes if f"{NOT_COMPILED}: /dev/null" in note]) == 1
