"""Running a sweep, with a watcher that records its progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.cli import main
from experiments.grid.config import Config
from experiments.grid.experiment import Experiment
from experiments.store.files import records
from experiments.sweep import sweep
from experiments.sweep.decoder import Prepared

Make = Callable[..., Config]


class Notes(sweep.Progress):
    """Records what a sweep reports."""

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


def jsonl(file: Path, *rows: dict[str, Any]) -> str:
    """Write a file of problems, one a line, and return its name."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def json_of(capture: Any, *arguments: object) -> Any:
    """What a command prints with `--json`; fails if anything else is on standard output."""
    capture.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capture.readouterr().out)


def prepare(config: Config, out: Path, *, again: bool = False) -> Prepared:
    sweep.begin(config, out)
    return sweep.prepare(Experiment.from_config(config), out, again=again)


def go(
    config: Config, out: Path, notes: Notes | None = None, *, again: bool = False, **options: Any
) -> tuple[sweep.Outcome, Notes]:
    notes = notes or Notes()
    prepared = prepare(config, out, again=again)
    arguments = {"preset": "demo-small", "arguments": ["sweep"], "progress": notes}
    return sweep.run(prepared, out, **arguments, **options), notes


def stored(out: Path) -> int:
    """Readable records in all files of a store, repeated ones counted."""
    return sum(len([*records.read(file, [])]) for file in (out / "traces").glob("*.zst"))
