"""Who is told how a sweep goes."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.grid.identity import Cell


class Progress:
    """Told how a sweep goes; this one does nothing. Weights are expected tokens."""

    def plan(self, runs: int, stored: int, weight: float) -> None:
        """How many runs there are, how many the store has, and the work left."""

    def cell(self, cell: Cell, datasets: Sequence[str] = ()) -> None:
        """One configuration begins, with problems of these data sets; the cell's own if none."""

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
