"""Penalties as an axis of a sweep: what is decoded, what it is compared with, where it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sweeping import Make, go
from transformers import AutoModelForCausalLM, AutoTokenizer

import lil
from experiments.grid.plan import Plan
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study


@pytest.fixture(scope="module")
def swept(tiny_config: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    config = tiny_config(
        backends="sink",
        budgets="32",
        penalties="lz",
        penalty_params={"lz": {"alpha": 1.5, "buffer": 4}},
        max_new_tokens=40,
    )
    out = tmp_path_factory.mktemp("penalties")
    outcome, _ = go(config, out)
    return Store(out), Plan.from_dict(manifest.read(out)["plan"]), config, outcome


def test_every_backend_and_budget_is_decoded_with_and_without(swept: Any) -> None:
    store, plan, config, outcome = swept
    grid = [(c.name, c.is_full) for c in plan.configurations]
    names = ["full", "sink 32", "full + lz", "sink 32 + lz"]
    assert grid == [(name, name == "full") for name in names]
    assert (outcome.counts.decoded, outcome.counts.failed) == (16, 0)
    lengths = {r.meta["item_id"]: r.meta["tokens"] for r in store if _cell(r) == ("full", 0)}
    study = Study(store, plan, config)
    for run in study.runs():
        cap = study.cap(run)
        cut = lengths[run.item_id] == 40  # where full attention was cut, all are
        assert cap == (40 if run.configuration.is_full or cut else 2 * lengths[run.item_id])
    assert all(r.values()["reused_tokens"] == 0 for r in store if r.meta["cell"]["penalties"])
    assert sorted(set(store.frame()["penalty"])) == ["lz", "none"]


def _cell(record: Any) -> tuple[str, int]:
    cell = record.meta["cell"]
    return cell["backend"]["name"], len(cell["penalties"])


def test_the_tokens_are_those_of_the_penalty(swept: Any, tiny_model: Path) -> None:
    store, plan, config, _ = swept
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    (cell,) = [c for c in plan.configurations if c.name == "full + lz"]
    changed = 0
    for run in plan.runs(cell):
        record, full = store.get(run.id), Study(store, plan, config).full(run)
        ids = record.values()["new_ids"]
        (trace,) = lil.decode(
            model,
            tokenizer,
            [record.values()["prompt_ids"]],
            penalties=[lil.LZPenalty(alpha=1.5, buffer=4)],
            max_new_tokens=Study(store, plan, config).cap(run),
        )
        assert list(trace.new_ids) == ids
        changed += ids != full.values()["new_ids"]
    assert changed >= 2  # the others end before a token comes again
