"""Several workers decode what one does; what happens when they die; how many there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeping import Make, Notes, go, stored
from test_sweep import tokens_of

from attention import Full
from attention.errors import InvalidValue
from experiments.grid import models
from experiments.grid.config import Config
from experiments.store import manifest
from experiments.store.store import Store
from experiments.sweep.decoder import DecodeJob, Setup
from experiments.sweep.executors import processes
from tests.sampling import some_slow

#: Three data sets, so that jobs mix them; float64, so that batches cannot show.
GRID: dict[str, Any] = {"datasets": "easy,medium", "dtype": "float64", "limit": 3}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny_config: Make) -> Path:
    """The store of a sweep in this process, a row at a time."""
    out = tmp_path_factory.mktemp("alone")
    go(tiny_config(**GRID, batch_size=1), out)
    return out


def whole(out: Path) -> None:
    """Nothing was stored twice, nothing failed, and the sweep says that it ended."""
    store = Store(out)
    assert stored(store.path) == len(store) == 30
    assert not any(record.failed for record in store)
    assert manifest.read(out)["status"] == "finished"
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("workers", "batch"), some_slow([(2, 7), (1, 7), (1, 32), (2, 1), (2, 32), (3, 4)], 2)
)
def test_neither_workers_nor_batches_change_a_token(
    workers: int, batch: int, alone: Path, tiny_config: Make, tmp_path: Path
) -> None:
    config = tiny_config(**GRID, workers=workers, batch_size=batch)
    outcome, notes = go(config, tmp_path)
    whole(tmp_path)
    assert tokens_of(tmp_path) == tokens_of(alone)
    counts = outcome.counts
    assert (counts.runs, counts.decoded, counts.stored_before) == (30, 30, 0)
    traces = [record.trace() for record in Store(tmp_path)]
    assert counts.decoded_tokens == notes.tokens
    assert counts.decoded_tokens + counts.reused_tokens == sum(t.tokens for t in traces)
    full = [
        r.meta["tokens"] for r in Store(tmp_path) if r.meta["cell"]["backend"]["name"] == "full"
    ]
    assert notes.done_runs == 30
    assert notes.done == pytest.approx(6 * 24 / 4 + 4 * sum(full))
    values = manifest.read(tmp_path)
    assert (values["workers"], values["engine"]) == (workers, manifest.read(alone)["engine"])


class Hunter(Notes):
    """Kills the worker that got the newest job, until two are told as lost.

    One that has ended its job just before it is killed loses nothing and is not told.
    """

    def __init__(self, hired: list[processes._Worker]) -> None:
        super().__init__()
        self._hired = hired

    def lost(self) -> int:
        return sum("a worker was lost (killed by SIGKILL" in note for note in self.notes)

    def step(self, tokens: int) -> None:
        super().step(tokens)
        if self.lost() < 2 and self._hired[-1].busy:
            self._hired[-1].process.kill()


def test_workers_killed_at_work_cost_nothing(
    alone: Path, tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hired: list[processes._Worker] = []
    submit = processes.Processes.submit

    def watched(self: processes.Processes, worker: int, job: DecodeJob) -> None:
        submit(self, worker, job)
        hired.append(self._workers[worker])

    monkeypatch.setattr(processes.Processes, "submit", watched)
    config = tiny_config(**GRID, workers=2, batch_size=4)
    hunter = Hunter(hired)
    outcome, _ = go(config, tmp_path, hunter)
    whole(tmp_path)
    assert tokens_of(tmp_path) == tokens_of(alone)
    assert outcome.counts.decoded == hunter.done_runs == 30
    assert hunter.lost() >= 2


class Dying(Setup):
    """Ends its process instead of loading."""

    def load(self) -> tuple[models.LoadedModel, dict[str, Any]]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_where_no_worker_can_start_one_message_says_so(tiny_model: Path) -> None:
    setup = Dying(models.find(str(tiny_model)), Config(), (Full(),), (), "cpu")

    def start(executor: processes.Processes) -> None:
        for _ in range(10):
            executor.hire(2)
            executor.wait(lambda *_: None)

    with processes.Processes([setup] * 2) as executor:
        expected = r"workers = 2: expected a number of processes that can start .*SIGKILL"
        with pytest.raises(InvalidValue, match=expected):
            start(executor)


def test_a_model_that_does_not_load_is_said_as_ever(tiny_model: Path) -> None:
    source = replace(models.find(str(tiny_model)), location=str(tiny_model / "nowhere"))
    setup = Setup(source, Config(), (Full(),), (), "cpu")
    with processes.Processes([setup]) as executor:
        executor.hire(1)
        expected = r"a causal language model with its tokenizer \(no folder .*nowhere\)"
        with pytest.raises(InvalidValue, match=expected):
            executor.wait(lambda *_: None)


class Impatient(Notes):
    """Presses Ctrl-C."""

    def step(self, tokens: int) -> None:
        super().step(tokens)
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_workers_and_the_sweep_goes_on(
    alone: Path, tiny_config: Make, tmp_path: Path
) -> None:
    config = tiny_config(**GRID, workers=2, batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        go(config, tmp_path, Impatient())
    assert manifest.read(tmp_path)["status"] == "interrupted"
    assert not multiprocessing.active_children()
    assert len(Store(tmp_path)) < 30
    go(config, tmp_path)
    whole(tmp_path)
    assert tokens_of(tmp_path) == tokens_of(alone)


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(models.os, "sched_getaffinity", lambda _: range(6))
    before = torch.get_num_threads()
    try:
        assert [models.use_threads(None, n) for n in (1, 2, 4, 6, 50)] == [6, 3, 1, 1, 1]
        assert models.use_threads(5, 3) == 5
    finally:
        torch.set_num_threads(before)
