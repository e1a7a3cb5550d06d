"""SIGKILL in the middle of a sweep: the same command ends with the same results.

A forked child sweeps and kills itself, between two steps of decoding or in the middle of writing a
record.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from sweeping import Make, Notes, go, stored

from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import Plan
from experiments.report import measures
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


class Killer(Notes):
    """Kills its own process after so many decode steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps_left = steps

    def step(self, tokens: int) -> None:
        super().step(tokens)
        self.steps_left -= 1
        if self.steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _in_a_child(work: Callable[[], object]) -> int:
    """Exit status of a forked child; 9 if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _rows(out: Path, config: Config) -> list[dict[str, object]]:
    plan = Plan.from_dict(manifest.read(out)["plan"])
    results = Study(Store(out), plan, config).samples(build_detectors(config))
    assert not any(sample.status == "missing" for sample in results)
    return [
        {k: v for k, v in row.to_dict().items() if "sec" not in k and "end_to_end" not in k}
        for row in measures.summarise(results, seed=0)
    ]


def test_killed_at_random_steps_it_ends_the_same(tiny_config: Make, tmp_path: Path) -> None:
    config = tiny_config(limit=3, dtype="float64", max_new_tokens=48)
    go(config, tmp_path / "whole")
    rng = random.Random(0)
    kills = 0
    for _ in range(6):
        steps = rng.randrange(20, 70)
        status = _in_a_child(lambda s=steps: go(config, tmp_path / "killed", Killer(s)))
        kills += status == -signal.SIGKILL
    assert kills >= 3
    go(config, tmp_path / "killed")
    killed, whole = Store(tmp_path / "killed"), Store(tmp_path / "whole")
    assert len(list((tmp_path / "killed" / "traces").iterdir())) >= 3
    assert stored(killed.path) == len(killed) == len(whole) == 15
    assert {r.id: r.values()["new_ids"] for r in killed} == {
        r.id: r.values()["new_ids"] for r in whole
    }
    assert _rows(tmp_path / "killed", config) == _rows(tmp_path / "whole", config)
    assert manifest.read(tmp_path / "killed")["status"] == "finished"
