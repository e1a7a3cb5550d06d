"""Writes the outcomes of runs into the store, counts them and informs the progress bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import lil
from attention.identity import code
from experiments.grid.identity import Configuration
from experiments.store import manifest
from experiments.store.samples.replay import stored_verdict
from experiments.store.store import Store
from experiments.sweep.decoder import RowFailure, RowTrace
from experiments.sweep.missing_runs import MissingRuns, PendingRun
from experiments.sweep.schedule import Task


class Progress:
    """Is informed of a sweep's events; this one does nothing. Weights are expected tokens."""

    def plan(self, runs: int, stored: int, weight: float) -> None:
        """How many runs there are, how many the store has, and the work left."""

    def configuration(self, configuration: Configuration, datasets: Sequence[str] = ()) -> None:
        """One configuration begins, with problems of these data sets; its own if none."""

    def step(self, tokens: int) -> None:
        """So many tokens were decoded since the last call."""

    def run_done(self, weight: float) -> None:
        """One run ended."""

    def weigh(self, weight: float) -> None:
        """The work left is now known better."""

    def more(self, runs: int, weight: float) -> None:
        """So many more runs have turned out to be needed."""

    def note(self, text: str) -> None:
        """Something a reader should know."""


@dataclass
class Counts:
    """What a sweep did; tokens are generated ones."""

    runs: int = 0
    stored_before: int = 0
    decoded: int = 0
    failed: int = 0
    decoded_tokens: int = 0
    reused_tokens: int = 0
    acted: int = 0


@dataclass
class ResultWriter:
    """Stores each run as it ends; the store is this process's alone to write."""

    store: Store
    progress: Progress
    counts: Counts
    sweep: str
    missing: MissingRuns

    @cached_property
    def _runtime(self) -> str:
        return manifest.runtime(self.missing.config.runtime)

    def write(self, task: Task[PendingRun], event: RowTrace) -> None:
        """A run that was decoded."""
        trace = event.trace
        outcome = {
            "status": "capped" if trace.finish == "length" else "ok",
            "finish": trace.finish,
            "tokens": trace.tokens,
            "at_positions": trace.at_positions,
            "signals": sorted(trace.signals),
            "batch_size": event.rows,
        }
        self._append(task, outcome, trace)
        self.counts.decoded += 1
        self.counts.acted += task.what.detector is not None
        self.counts.decoded_tokens += trace.decoded_tokens - trace.reused_tokens
        self.counts.reused_tokens += trace.reused_tokens

    def write_failure(self, task: Task[PendingRun], event: RowFailure) -> None:
        """A run that cannot be decoded."""
        outcome = {"status": event.status, "message": event.message, "batch_size": event.rows}
        self._append(task, outcome, None)
        self.counts.failed += 1
        run = task.what.run
        where = f"{run.configuration.name}, {run.configuration.dataset} {run.item_id}"
        self.progress.note(f"{where}: {event.message}")

    def _append(
        self, task: Task[PendingRun], outcome: Mapping[str, Any], trace: lil.Trace | None
    ) -> None:
        run, fired = task.what
        own_code = self.missing.code(run.configuration)
        made_by: dict[str, object] = {"code": own_code, "notes_code": self.missing.notes_code}
        if fired is not None:
            own_code = own_code | code(fired.detector)
            made_by = {"code": own_code, "verdict": stored_verdict(fired.verdict)}
        meta = {
            "cell": run.configuration.to_dict(),
            "item_id": run.item_id,
            "prompt": run.problem.prompt,
            "sample_index": run.sample_index,
            "status": None,
            "finish": None,
            "tokens": None,
            "message": None,
            "detector": None if fired is None else fired.detector.identity(),
            **{key: value for key, value in made_by.items() if value},
            "sweep": self.sweep,
            "workers": self.missing.config.workers,
            "runtime": self._runtime,
            **outcome,
        }
        self.store.append(task.key, meta, None if trace is None else trace.to_dict())
        self.progress.run_done(task.expected)
