"""A small sweep decoded by vLLM beside the same by `lil.decode`: tokens, answers, costs and rows.

In an environment of its own, see `scripts/test_vllm`. The engine's sweep is stopped and goes on.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

import numpy as np

from experiments.grid.config import Config
from experiments.grid.presets import load
from experiments.report.measures import rows
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import sweep

pytestmark = pytest.mark.slow

LAYERS, HEADS, PAGE, BUDGET = 5, 2, 32, 128
GRID = {
    "datasets": "easy",
    "limit": 4,
    "backends": 'full,quest(page=32,dense_layers=0),sink(sinks=32,positions="absolute")',
    "budgets": str(BUDGET),
    "max_new_tokens": 200,
    "batch_size": 3,
    "check_every": 40,
}
#: What the engine keeps, times and compares otherwise, or what follows from that.
OTHERWISE = ("keys_kept", "keys_read", "cache_byte", "end_to_end", "sec_per_solved", "cheaper")
OTHERWISE += ("reused_tokens", "caps", "seconds")


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
    prepared = sweep.prepare(config, out)
    return sweep.run(prepared, out, preset="", arguments=[], progress=progress)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: Any) -> tuple[Path, Path]:
    """Of vLLM, in two parts, and of `lil.decode`."""
    theirs, mine = tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("mine")
    config = load("demo-small", GRID)
    served = replace(config, runtime="vllm")
    with pytest.raises(KeyboardInterrupt):
        go(served, theirs, Stopping(4))  # full attention's, after which another engine is started
    assert len(Store(theirs)) == 4
    counts = go(served, theirs, sweep.Progress()).counts
    assert (counts.stored_before, counts.decoded, counts.failed) == (4, 8, 0)
    assert go(config, mine, sweep.Progress()).counts.decoded == 12
    return theirs, mine


def alike(one: Any, two: Any) -> bool:
    """Whether two values of a row are the same but for the rounding of sums."""
    if isinstance(one, float) and isinstance(two, float):
        return one == pytest.approx(two, nan_ok=True)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(alike(one[key], two[key]) for key in one)
    return one == two


def by_run(folder: Path) -> dict[Any, Any]:
    def key(meta: Any) -> Any:
        cell = meta["cell"]
        return cell["backend"]["name"], meta["item_id"]

    return {key(record.meta): record for record in Store(folder)}


def test_the_same_tokens_and_costs(stores: tuple[Path, Path]) -> None:
    theirs, mine = map(by_run, stores)
    assert theirs.keys() == mine.keys()
    assert {one.meta["runtime"].split()[0] for one in theirs.values()} == {"vllm"}
    assert {one.meta["runtime"].split()[0] for one in mine.values()} == {"transformers"}
    same = 0
    for key, record in theirs.items():
        one, two = record.trace(), mine[key].trace()
        if one.new_ids != two.new_ids:
            continue  # a tie of two tokens, which is counted below
        same += 1
        for name in ("finish", "curve", "pieces", "prompt_bytes", "positions", "keys_read_max"):
            assert getattr(one, name) == getattr(two, name)
        assert one.keys_read_mean == pytest.approx(two.keys_read_mean)
        for ours, other in zip(two.checks, one.checks, strict=True):
            assert (other.tokens, other.read_sum) == (ours.tokens, pytest.approx(ours.read_sum))
            seen = len(one.prompt_ids) + np.arange(1, other.tokens)
            # Quest of `lil.decode` compares the last page's bounds too, which it always reads.
            more = 2 * LAYERS * HEADS * int((seen > BUDGET).sum()) if key[0] == "quest" else 0
            assert other.keys_read + more == ours.keys_read
        assert record.meta["batch_size"] == mine[key].meta["batch_size"]
    print(f"{same} of {len(theirs)} outputs equal")
    assert same >= len(theirs) - 1


def test_the_same_answers_and_rows(stores: tuple[Path, Path]) -> None:
    found = []
    for folder in stores:
        study = Study.open(folder)
        samples = study.samples(study.detectors).samples
        made = rows(samples, 0, factor=2)
        answers = {(s.backend, s.penalty, s.detector, s.item_id): s.answer for s in samples}
        told = {(r.backend, r.penalty, r.detector): asdict(r) for r in made}
        found.append((answers, told, study.said))
    (answers, told, said), (others, untold, _) = found
    assert sum(answers[key] != others[key] for key in others) <= 1
    assert told.keys() == untold.keys()
    parted = set()
    for key, row in told.items():
        for name, value in row.items():
            left_out = name.startswith(OTHERWISE) or name.endswith("_sec")
            if not left_out and not alike(value, untold[key][name]):
                parted.add((*key, name))
    assert parted == set()
    assert not any("decoded by" in line for line in said)
