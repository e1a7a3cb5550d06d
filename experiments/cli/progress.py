"""Progress on stderr: bars with rate and time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from experiments.cli.console import Console
from experiments.grid.identity import Configuration
from experiments.sweep import runner


class Bars(runner.Progress):
    """A sweep's progress: runs done, the configuration at work, tokens a second, time left.

    It moves by expected tokens, not by runs: hard problems come last and take longest. `names` is
    what data sets are called, where that is not their own name.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}
        self.console = Console(stderr=True)
        # The configuration gives way to the numbers.
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        rate = [TextColumn("{task.fields[rate]}")] if self.console.width >= 72 else []
        columns = (SpinnerColumn(), TextColumn("{task.fields[runs]}"), TaskProgressColumn(), *rate)
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        text = TextColumn("{task.description}", markup=False, table_column=rest)
        # Rows of a batch end in bursts: the rate has to look back further than rich does.
        how: dict[str, Any] = {"console": self.console, "speed_estimate_period": 300.0}
        self._progress = Progress(*columns, *times, text, expand=True, **how)
        self._task = self._progress.add_task("", total=None, runs="", rate="")
        self._runs = self._done = self._tokens = 0
        self._finished = self._total = 0.0
        self._started = monotonic()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def plan(self, runs: int, stored: int, weight: float) -> None:
        self._runs, self._done = runs, stored
        self._started = monotonic()
        if stored:
            self.note(f"{stored} of {runs} runs are in the store already")
        if stored == runs:
            self._progress.update(self._task, description="nothing left to decode")
        self._move(0.0, weight)

    def configuration(self, configuration: Configuration, datasets: Sequence[str] = ()) -> None:
        names = (self._names.get(name, name) for name in datasets or (configuration.dataset,))
        text = f"{configuration.name} · {', '.join(names)}"
        self._progress.update(self._task, description=text)
        if self.console.is_terminal:
            return
        # A log file gets a line instead of a moving bar.
        taken, left = monotonic() - self._started, "time left not known yet"
        if self._finished:
            left = f"{_clock(taken * (self._total - self._finished) / self._finished)} left"
        times = f"{self._rate()}, {_clock(taken)} so far, {left}"
        self.note(f"{self._done}/{self._runs} runs, {times}: {text}")

    def step(self, tokens: int) -> None:
        self._tokens += tokens
        self._progress.update(self._task, rate=self._rate())

    def _rate(self) -> str:
        return f"{self._tokens / max(1.0, monotonic() - self._started):,.0f} tok/s"

    def _move(self, finished: float, total: float) -> None:
        """Move the bar; where there is nothing to do, all of it is done."""
        self._finished, self._total = finished, total
        done, runs = (finished if total else 1.0), f"{self._done}/{self._runs}"
        self._progress.update(self._task, total=total or 1.0, completed=done, runs=runs)

    def run_done(self, weight: float) -> None:
        self._done += 1
        self._move(self._finished + weight, self._total)

    def weigh(self, weight: float) -> None:
        self._move(self._finished, self._finished + weight)

    def more(self, runs: int, weight: float) -> None:
        self._runs += runs
        self._move(self._finished, self._total + weight)

    def note(self, text: str) -> None:
        self.console.print(f"lil: {text}", highlight=False, markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def bar(text: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar of equal pieces; yields a function to be called after each piece, or after several."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, *times, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(text, total=total)
        yield lambda pieces=1: progress.advance(task, pieces)
