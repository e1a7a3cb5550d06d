"""The identity of a decode run: pinned, and moved by exactly the fields that change tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from experiments.grid import identity
from experiments.grid.config import Config
from experiments.grid.identity import Configuration, run_id
from experiments.grid.plan import build_configurations
from experiments.grid.presets import load
from experiments.store.study import Study

SMALL = Path(__file__).parent / "data" / "small"

BASE = Configuration(
    model="reasoner",
    model_digest="00ff",
    dataset="easy",
    backend={"name": "h2o", "budget": 64, "heavy": 32},
    penalties=(),
    sampling=identity.sampling(0.6, None, 0.95, 3),
    dtype="float32",
)


def test_the_hash_is_pinned() -> None:
    # A change here orphans every stored trace: raise VERSION only if tokens really changed.
    assert identity.VERSION == 1
    assert identity.prompt_digest([1, 2, 3]) == "a615eeaee21de5179de080de8c3052c8"
    assert run_id(BASE, "easy/study/0", "abcd", 0) == "8c3169e7eccde7b57ade35bf8bacec40"


@pytest.mark.parametrize(
    "change",
    [
        {"model_digest": "00fe"},
        {"dataset": "medium"},
        {"backend": {"name": "sink", "budget": 64, "heavy": 32}},
        {"backend": {"name": "h2o", "budget": 65, "heavy": 32}},
        {"backend": {"name": "h2o", "budget": 64, "heavy": 31}},
        {"penalties": ({"name": "lz", "alpha": 0.15},)},
        {"sampling": identity.sampling(0.7, None, 0.95, 3)},
        {"sampling": identity.sampling(0.6, 50, 0.95, 3)},
        {"sampling": identity.sampling(0.6, None, 0.9, 3)},
        {"sampling": identity.sampling(0.6, None, 0.95, 4)},
        {"sampling": identity.sampling(0.0, None, 0.95, 3)},
        {"dtype": "bfloat16"},
    ],
)
def test_what_changes_tokens_changes_the_identity(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(BASE, **change)
    assert run_id(changed, "i", "p", 0) != run_id(BASE, "i", "p", 0)


def test_item_prompt_sample_and_version_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {
        run_id(BASE, *rest) for rest in (("i", "p", 0), ("j", "p", 0), ("i", "q", 0), ("i", "p", 1))
    }
    assert len(ids) == 4
    monkeypatch.setattr(identity, "VERSION", identity.VERSION + 1)
    assert run_id(BASE, "i", "p", 0) not in ids


def test_greedy_decoding_draws_nothing() -> None:
    assert identity.sampling(0.0, 5, 0.9, 1) == identity.sampling(0.0, None, 1.0, 2)


def test_the_same_weights_under_another_name_or_path_are_the_same_run() -> None:
    assert run_id(dataclasses.replace(BASE, model="./copy"), "i", "p", 0) == run_id(
        BASE, "i", "p", 0
    )
    here, there = (dataclasses.replace(BASE, dataset=d) for d in ("a/x.jsonl", "b/x.jsonl"))
    assert run_id(here, "i", "p", 0) == run_id(there, "i", "p", 0)


def test_every_stored_run_has_the_identity_it_is_planned_with() -> None:
    study = Study.open(SMALL)
    planned = {run.id for run in study.runs()}
    stored = {record.id: record.meta["detector"] for record in study.store}
    assert study.store.notices == []
    assert planned == {id_ for id_, detector in stored.items() if detector is None}
    assert (len(planned), len(stored)) == (24, 37)


def test_every_stored_cell_gives_back_its_backend_and_its_penalties() -> None:
    study = Study.open(SMALL)
    for cell in study.plan.configurations:
        assert study.backend(cell).identity() == cell.backend
        assert tuple(p.identity() for p in study.penalties(cell)) == cell.penalties


def _cells(config: Config) -> list[str]:
    from experiments.grid.plan import build_backends

    cells = build_configurations(config, "m", "00", ("easy",), build_backends(config))
    return [run_id(cell, "i", "p", 0) for cell in cells]


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": "auto"},
        {"device": "cuda:1"},
        {"threads": 1},
        {"cap": "4x-full"},
        {"max_new_tokens": 9},
        {"detectors": "none"},
        {"detector_params": {"guardian": {"f": 7}}},
        {"check_every": 3},
        {"limit": 2},
    ],
)
def test_what_changes_no_token_is_not_in_it(change: dict[str, Any]) -> None:
    assert _cells(load("demo-small", change)) == _cells(load("demo-small"))


def test_a_backends_defaults_are_resolved_before_hashing() -> None:
    import attention

    default, explicit = (attention.get("sink", budget=32, **more) for more in ({}, {"sinks": 4}))
    assert default.identity() == explicit.identity()
