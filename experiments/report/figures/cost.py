"""Figure 4: what a solved problem costs against budget, full attention being 1."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.report.figures.against_budget import (
    Measure,
    Point,
    against_budget,
    beside,
    budgets_of,
    problem_count,
)
from experiments.report.figures.footer import Conditions, censored, footer, other_detectors
from experiments.report.figures.style import FULL
from experiments.report.row import ReportRow, series

_UNBOUNDED = "an arrow is an interval without end: in too many resamples none is solved"


def cost(rows: list[ReportRow], under: str, conditions: Conditions) -> Figure:
    """Keys read per solved problem over full attention's, bootstrap intervals, logarithmic.

    Where none is solved there is a gap, and a cross at the panel's upper end says so.
    """
    title = f"Keys read per solved problem against cache budget, with 95% intervals{under}"
    measure = Measure("times full attention's", _cost, height=2.9, dress=_dress)
    notes = footer(rows, conditions)
    left_out = censored(rows)
    if left_out:
        notes.append(
            f"of a configuration's pairs, {left_out} or fewer are in no ratio: full attention was "
            "cut itself at its cap"
        )
    plain = [row for row in rows if row.detector == "none" and row.budget is not None]
    if any(_cost(row)[0] is not None and None in _cost(row) for row in plain):
        notes.append(_UNBOUNDED)
    more = []
    if any(map(_none_solved, plain)):
        more.append(
            Line2D([], [], color=FULL, marker="x", linestyle="none", label="none solved: no cost")
        )
    notes += other_detectors(rows)
    return against_budget(rows, [measure], title, notes, _words, more)


def _words(part: list[ReportRow]) -> str:
    left_out = censored(part)
    return problem_count(part) + (f", {left_out} in no ratio" if left_out else "")


def _cost(row: ReportRow) -> Point:
    if row.is_baseline and row.detector == "none":
        # Measured against itself, and 1 even where every pair is censored.
        return 1.0, None, None
    return (
        row.keys_read_per_solved_ratio.estimate,
        row.keys_read_per_solved_ratio.low,
        row.keys_read_per_solved_ratio.high,
    )


def _none_solved(row: ReportRow) -> bool:
    return row.accuracy.estimate == 0


def _dress(axis: Any, rows: list[ReportRow], looks: dict[str, tuple[str, str]]) -> None:
    plain = [row for row in rows if row.detector == "none" and row.budget is not None]
    known = [one for row in rows for one in _cost(row) if one]
    low, high = min([0.5, *known]) / 1.25, max([2.0, *known]) * 1.25
    if any(map(_none_solved, plain)):
        high *= 1.6  # room of their own for the crosses
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    steps = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    lines, budgets = series(plain), budgets_of(rows)
    for at, (label, line) in enumerate(lines.items()):
        colour, _ = looks[label]
        for row in line:
            assert row.budget is not None
            x = row.budget * beside(at, len(lines), budgets)
            value, least, most = _cost(row)
            if value is not None and row.problems > 1:
                _unbounded(axis, x, (value, least, most), (low, high), colour)
            if _none_solved(row):
                axis.plot([x], [high / 1.25], "x", color=colour, markersize=5, clip_on=False)
    if not any(_cost(row)[0] for row in plain):
        axis.text(0.5, 0.7, _why_empty(rows), transform=axis.transAxes, ha="center", fontsize=8)


def _unbounded(
    axis: Any,
    x: float,
    point: tuple[float, float | None, float | None],
    limits: tuple[float, float],
    colour: str,
) -> None:
    """A bar that ends in an arrow on the side where nothing bounds the cost."""
    value, least, most = point
    if least is not None and most is not None:
        return
    ends = (
        limits[0] * 1.05 if least is None else least,
        limits[1] / 1.05 if most is None else most,
    )
    axis.vlines(x, *ends, color=colour, linewidth=1.0, alpha=0.65, zorder=2)
    for bound, end, mark in ((least, ends[0], "v"), (most, ends[1], "^")):
        if bound is None and value is not None:
            axis.plot([x], [end], mark, color=colour, markersize=3)


def _why_empty(rows: list[ReportRow]) -> str:
    full = next((row for row in rows if row.is_baseline and row.detector == "none"), None)
    if full is None or not full.is_complete:
        return "nothing to compare with:\nfull attention is not complete"
    if full.accuracy.estimate == 0:
        return "full attention solves none:\nthere is no ratio"
    if full.pairs_censored == full.pairs:
        return "full attention was always\ncut at its cap: no ratio"
    return "no ratio is known"
