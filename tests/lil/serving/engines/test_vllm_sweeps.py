"""A small sweep decoded by vLLM beside the same by `lil.decode`: tokens, answers, costs and rows.

In an environment of its own, see `scripts/test_vllm`. The engine's sweep is stopped and goes on;
another, in a process of its own, is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

import numpy as np

from experiments.grid.config import Config
from experiments.grid.presets import load
from experiments.report.measures import summarise
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import sweep

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
LAYERS, HEADS, PAGE, BUDGET = 5, 2, 32, 128
RUNS, KILLS = 12, 3
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
        samples = study.samples(study.detectors)
        made = summarise(samples, 0, factor=2)
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


def sweeping(out: Path, said: Path) -> subprocess.Popen[bytes]:
    """The same sweep as a command, in a process of its own."""
    flags = {
        "preset": "demo-small", "dataset": GRID["datasets"], "limit": GRID["limit"],
        "backend": GRID["backends"], "budget": GRID["budgets"], "batch-size": GRID["batch_size"],
        "max-new-tokens": GRID["max_new_tokens"], "check-every": GRID["check_every"],
        "runtime": "vllm", "out": out,
    }  # fmt: skip
    asked = [part for flag, value in flags.items() for part in (f"--{flag}", str(value))]
    with said.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.cli", "sweep", *asked, "--no-figures"],
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )


def stored_bytes(out: Path) -> int:
    return sum(path.stat().st_size for path in (out / "traces").glob("*.zst"))


def is_killed(process: subprocess.Popen[bytes], out: Path, size: float, delay: float) -> bool:
    """SIGKILL once the store has grown to a size and some time has passed; False if it ended."""
    deadline = time.monotonic() + 1800
    while process.poll() is None and stored_bytes(out) < size:
        assert time.monotonic() < deadline, "the sweep stores nothing"
        time.sleep(0.02)
    time.sleep(delay)
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def untimed(out: Path) -> list[dict[str, Any]]:
    """Rows of a store's report without what is measured with a clock."""
    study = Study.open(out)
    results = study.samples(study.detectors)
    assert results.missing == 0
    return [
        {k: v for k, v in row.to_dict().items() if "sec" not in k and "end_to_end" not in k}
        for row in summarise(results.samples, 0, factor=2)
    ]


def test_killed_at_random_moments_it_ends_the_same(tmp_path: Path) -> None:
    config = replace(load("demo-small", GRID), runtime="vllm")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert go(config, whole, sweep.Progress()).counts.decoded == RUNS
    drawn, kills = random.Random(0), 0
    for moment in sorted(drawn.uniform(0.0, 0.9) for _ in range(KILLS)):
        process = sweeping(killed, tmp_path / "said")
        dead = is_killed(process, killed, moment * stored_bytes(whole), drawn.uniform(0.0, 0.3))
        assert dead or process.returncode == 0, (tmp_path / "said").read_text()
        # One that had stored everything was killed in vain.
        kills += dead and len(Store(killed)) < RUNS
    assert kills >= KILLS - 1
    before = len(Store(killed))
    assert manifest.read(killed)["status"] == "running" or before == RUNS
    counts = go(config, killed, sweep.Progress()).counts
    assert (counts.stored_before, counts.decoded, counts.failed) == (before, RUNS - before, 0)
    stores = [Store(whole), Store(killed)]
    assert stores[1].stored() == len(stores[1]) == RUNS
    one, two = ({r.id: r.values()["new_ids"] for r in store} for store in stores)
    assert one == two
    assert untimed(whole) == untimed(killed)
    assert manifest.read(killed)["status"] == "finished"
