"""A small sweep decoded by vLLM and the same by `lil.decode`: tokens, answers, costs and rows.

In an environment of its own, see `scripts/test_vllm`. The engine's sweep is stopped and goes on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

import numpy as np

from experiments.grid.config import Config
from experiments.grid.experiment import Experiment
from experiments.grid.presets import load
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import sweep

pytestmark = pytest.mark.slow

LAYERS, HEADS, BUDGET = 5, 2, 128
GRID = {
    "datasets": "easy",
    "limit": 4,
    "backends": 'full,quest(page=32,dense_layers=0),sink(sinks=32,positions="absolute")',
    "budgets": str(BUDGET),
    "max_new_tokens": 200,
    "batch_size": 3,
    "check_every": 40,
}


class Stopping(sweep.Progress):
    """Somebody presses Ctrl-C after so many runs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def run_done(self, weight: float) -> None:
        del weight
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def go(config: Config, out: Path, progress: sweep.Progress) -> sweep.Outcome:
    sweep.begin(config, out)
    prepared = sweep.prepare(Experiment.from_config(config), out)
    return sweep.run(prepared, out, preset="", arguments=[], progress=progress)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: Any) -> tuple[Path, Path]:
    """Of vLLM, in two parts, and of `lil.decode`."""
    served, plain = tmp_path_factory.mktemp("vllm"), tmp_path_factory.mktemp("decode")
    config = load("demo-small", GRID)
    by_vllm = replace(config, runtime="vllm")
    with pytest.raises(KeyboardInterrupt):
        go(by_vllm, served, Stopping(4))  # full attention's, after which another engine is started
    assert len(Store(served)) == 4
    counts = go(by_vllm, served, sweep.Progress()).counts
    assert (counts.stored_before, counts.decoded, counts.failed) == (4, 8, 0)
    assert go(config, plain, sweep.Progress()).counts.decoded == 12
    return served, plain


def by_run(folder: Path) -> dict[Any, Any]:
    return {
        (record.meta["cell"]["backend"]["name"], record.meta["item_id"]): record
        for record in Store(folder)
    }


def test_the_same_tokens_and_costs(stores: tuple[Path, Path]) -> None:
    served, plain = map(by_run, stores)
    assert served.keys() == plain.keys()
    assert {record.meta["runtime"].split()[0] for record in served.values()} == {"vllm"}
    for key, record in served.items():
        left, right = record.trace(), plain[key].trace()
        names = ("new_ids", "finish", "curve", "pieces", "prompt_bytes", "positions")
        for name in (*names, "keys_read_max"):
            assert getattr(left, name) == getattr(right, name)
        assert left.keys_read_mean == pytest.approx(right.keys_read_mean)
        for ours, engines in zip(right.checks, left.checks, strict=True):
            assert (engines.tokens, engines.read_sum) == (ours.tokens, pytest.approx(ours.read_sum))
            seen = len(left.prompt_ids) + np.arange(1, engines.tokens)
            # Quest of `lil.decode` compares the last page's bounds too, which it always reads.
            more = 2 * LAYERS * HEADS * int((seen > BUDGET).sum()) if key[0] == "quest" else 0
            assert engines.keys_read + more == ours.keys_read
        assert record.meta["batch_size"] == plain[key].meta["batch_size"]


def test_the_same_answers(stores: tuple[Path, Path]) -> None:
    answers = []
    for folder in stores:
        study = Study.open(folder)
        samples = study.samples(study.detectors)
        answers.append({(s.backend, s.detector, s.item_id): s.answer for s in samples})
    assert answers[0] == answers[1]
