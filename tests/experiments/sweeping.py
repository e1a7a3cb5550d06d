"""Running a sweep, with a watcher that keeps what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.grid.config import Config
from experiments.store.files import records
from experiments.sweep import sweep


class Notes(sweep.Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tokens = 0
        self.done = 0.0
        self.done_runs = 0
        self.left = 0.0

    def plan(self, runs: int, stored: int, weight: float) -> None:
        self.runs, self.stored, self.left = runs, stored, weight

    def step(self, tokens: int) -> None:
        self.tokens += tokens

    def run_done(self, weight: float) -> None:
        self.done += weight
        self.done_runs += 1

    def weigh(self, weight: float) -> None:
        self.left = weight

    def note(self, text: str) -> None:
        self.notes.append(text)


def go(
    config: Config, out: Path, *, again: bool = False, **options: Any
) -> tuple[sweep.Outcome, Notes]:
    notes = Notes()
    prepared = sweep.prepare(config, out, again=again)
    outcome = sweep.run(
        prepared, out, preset="demo-small", arguments=["sweep"], progress=notes, **options
    )
    return outcome, notes


def stored(out: Path) -> int:
    """Readable records in all files of a store, repeated ones counted."""
    return sum(len([*records.read(file, [])]) for file in (out / "traces").glob("*.zst"))
