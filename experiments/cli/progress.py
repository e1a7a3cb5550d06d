"""Progress on stderr: bars with rate and time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from experiments.cli.console import Console
from experiments.grid.identity import Configuration
from experiments.sweep import result_writer as keeper


class Bars(keeper.Progress):
    """A sweep's progress: runs done, the configuration at work, tokens a second, time left.

    The bar moves by expected tokens, not by runs: hard problems come last and take longest.

    Args:
        names: what data sets are called, where that is not their own name.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}
        self.console = Console(stderr=True)
        self._progress = Progress(
            *_columns(self.console.width),
            console=self.console,
            expand=True,
            # Rows of a batch end in bursts: the rate has to look back further than that.
            speed_estimate_period=300.0,
        )
        self._task = self._progress.add_task("", total=None, runs="", rate="")
        self._runs = self._done = self._tokens = 0
        self._finished_weight = self._total_weight = 0.0
        self._started = monotonic()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def plan(self, runs: int, stored: int, weight: float) -> None:
        """How many runs there are, how many the store has, and the work left."""
        self._runs, self._done = runs, stored
        self._started = monotonic()
        if stored:
            self.note(f"{stored} of {runs} runs are in the store already")
        if stored == runs:
            self._progress.update(self._task, description="nothing left to decode")
        self._weighed(weight)

    def configuration(self, configuration: Configuration, datasets: Sequence[str] = ()) -> None:
        """One configuration begins, with problems of these data sets; the cell's own if none."""
        named = (self._names.get(name, name) for name in datasets or (configuration.dataset,))
        text = f"{configuration.name} · {', '.join(named)}"
        self._progress.update(self._task, description=text)
        if not self.console.is_terminal:  # a log file gets a line instead of a moving bar
            times = f"{_clock(monotonic() - self._started)} so far, {self._left()}"
            self.note(f"{self._done}/{self._runs} runs, {self._rate()}, {times}: {text}")

    def step(self, tokens: int) -> None:
        """So many tokens were decoded since the last call."""
        self._tokens += tokens
        self._progress.update(self._task, rate=self._rate())

    def _rate(self) -> str:
        return f"{self._tokens / max(1.0, monotonic() - self._started):,.0f} tok/s"

    def _left(self) -> str:
        if not self._finished_weight:
            return "time left not known yet"
        left = self._total_weight - self._finished_weight
        gone = monotonic() - self._started
        return f"{_clock(gone * left / self._finished_weight)} left"

    def _weighed(self, total: float) -> None:
        """Move the bar; where there is nothing to do, all of it is done."""
        self._total_weight = total
        self._progress.update(
            self._task,
            total=total or 1.0,
            completed=self._finished_weight if total else 1.0,
            runs=f"{self._done}/{self._runs}",
        )

    def run_done(self, weight: float) -> None:
        """One run ended."""
        self._done += 1
        self._finished_weight += weight
        self._weighed(self._total_weight)

    def weigh(self, weight: float) -> None:
        """The work left is now known better."""
        self._weighed(self._finished_weight + weight)

    def more(self, runs: int, weight: float) -> None:
        """So many more runs have turned out to be needed."""
        self._runs += runs
        self._weighed(self._total_weight + weight)

    def note(self, text: str) -> None:
        """Something a reader should know."""
        self.console.print(f"lil: {text}", highlight=False, markup=False, soft_wrap=True)


def _columns(width: int) -> list[ProgressColumn]:
    """What fits: the configuration gives way to the numbers, and the bar to the configuration."""
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return [
        SpinnerColumn(),
        TextColumn("{task.fields[runs]}"),
        *([BarColumn(bar_width=width - 90)] if width >= 100 else []),
        TaskProgressColumn(),
        *([TextColumn("{task.fields[rate]}")] if width >= 72 else []),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=rest),
    ]


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def bar(text: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar for a known number of equal pieces; yields what is to be called after each, or after
    so many."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task(text, total=total)
    with progress:
        yield lambda pieces=1: progress.advance(task, pieces)
