"""Measures against budget: one column a data set, one line a backend, full attention dashed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from experiments.report.figures.style import FULL, finish, panel_title, panels, styles
from experiments.report.row import ReportRow, dataset_order, series, shown_detector

Point = tuple[float | None, float | None, float | None]  # value, low, high


@dataclass(frozen=True)
class Measure:
    """One row of panels.

    Attributes:
        name: what stands at its axis.
        of: its value and interval in a row.
        height: of a panel, inches.
        is_share: from 0 to 100%, with that axis.
        dress: what else an axis gets: rows shown in it, and colours by label.
    """

    name: str
    of: Callable[[ReportRow], Point]
    height: float = 2.35
    is_share: bool = False
    dress: Callable[[Any, list[ReportRow], dict[str, tuple[str, str]]], None] | None = None


def budgets_of(rows: Sequence[ReportRow]) -> list[int]:
    """Every budget measured."""
    return sorted({row.budget for row in rows if row.budget is not None})


def against_budget(
    rows: list[ReportRow],
    measures: Sequence[Measure],
    title: str,
    notes: Sequence[str],
    words: Callable[[list[ReportRow]], str] | None = None,
    more: Sequence[Line2D] = (),
) -> Figure:
    """The figure; `words` stand beside a data set's name, `more` at the legend's end."""
    datasets = sorted({row.dataset for row in rows}, key=dataset_order)
    figure, axes = panels([one.height for one in measures], len(datasets))
    budgets, looks = budgets_of(rows), styles(rows)
    for column, dataset in enumerate(datasets):
        part = [row for row in rows if row.dataset == dataset]
        for at, measure in enumerate(measures):
            axis = axes[at][column]
            _draw(axis, part, budgets, measure, looks)
            if column == 0:
                axis.set_ylabel(measure.name)
        told = words(part) if words else problem_count(part)
        axes[0][column].set_title(panel_title(dataset, told))
        axes[-1][column].set_xlabel("cache budget, tokens")
    finish(figure, title, [*_handles(rows, looks, measures), *more], notes)
    return figure


def problem_count(part: Sequence[ReportRow]) -> str:
    """How many problems a panel is about."""
    count = max(row.problems for row in part)
    return f"{count} problem" + ("" if count == 1 else "s")


def _handles(
    rows: list[ReportRow], looks: dict[str, tuple[str, str]], measures: Sequence[Measure]
) -> list[Line2D]:
    found = [
        Line2D([], [], color=colour, marker=mark, label=label)
        for label, (colour, mark) in looks.items()
    ]
    found.append(Line2D([], [], color=FULL, linestyle="--", label="full attention"))
    if any(row.role == "null" for row in rows):
        told = "null: full attention beside itself"
        found.append(Line2D([], [], color=FULL, linestyle=":", label=told))
    watched = shown_detector(rows)
    plain = {row.key: row for row in rows if row.detector == "none"}
    if watched and any(
        row.key in plain and measure.of(row)[0] != measure.of(plain[row.key])[0]
        for row in rows
        for measure in measures
        if row.watched == watched and row.budget is not None
    ):
        dotted: dict[str, Any] = {"linestyle": ":", "marker": "o", "markerfacecolor": "white"}
        found.append(
            Line2D([], [], color="#888888", label=f"with {watched[0]} ({watched[1]})", **dotted)
        )
    return found


def _draw(
    axis: Any,
    rows: list[ReportRow],
    budgets: list[int],
    measure: Measure,
    looks: dict[str, tuple[str, str]],
) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(budgets))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([str(budget) for budget in budgets])
    margin = max(1.35, (budgets[-1] / budgets[0]) ** 0.12)
    axis.set_xlim(budgets[0] / margin, budgets[-1] * margin)
    plain = [row for row in rows if row.detector == "none"]
    for row in plain:
        if row.is_baseline:
            value, low, high = measure.of(row)
            if value is not None:
                axis.axhline(value, color=FULL, linestyle="--", linewidth=1.2, zorder=1)
            if low is not None and high is not None and low < high:
                axis.axhspan(low, high, color=FULL, alpha=0.09, linewidth=0, zorder=0)
        elif row.role == "null" and measure.of(row)[0] is not None:
            axis.axhline(measure.of(row)[0], color=FULL, linestyle=":", linewidth=1.2, zorder=1)
    lines = series([row for row in plain if row.budget is not None])
    watched = shown_detector(rows)
    beneath = series([r for r in rows if r.watched == watched and r.budget is not None])
    for at, (label, line) in enumerate(lines.items()):
        aside = beside(at, len(lines), budgets)
        colour, mark = looks[label]
        _draw_line(axis, line, measure, aside, {"color": colour, "marker": mark, "zorder": 3})
        if any(_differs(row, line, measure) for row in beneath.get(label, [])):
            hollow = {"markerfacecolor": "white", "linestyle": ":", "linewidth": 1.2, "zorder": 2}
            style = {"color": colour, "marker": mark, **hollow}
            _draw_line(axis, beneath[label], measure, aside, style, bars=False)
    if measure.is_share:
        axis.set_ylim(-0.05, 1.05)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.yaxis.set_major_locator(
            FixedLocator([0, 0.5, 1] if measure.height < 2 else [0, 0.2, 0.4, 0.6, 0.8, 1])
        )
    else:
        axis.margins(y=0.12)  # the highest mark is below the end, not cut by it
        axis.set_ylim(bottom=0)
    if measure.dress is not None:
        measure.dress(axis, rows, looks)


def beside(at: int, of: int, budgets: Sequence[int]) -> float:
    """Each backend a little aside of the tick, so that bars do not hide each other."""
    octaves = [math.log2(high / low) for low, high in pairwise(budgets)]
    # So much of the axis for each, but neighbours' groups stay apart.
    step = min([0.018 * (sum(octaves) + 0.87), *(0.8 * one / of for one in octaves)])
    return math.exp2(step * (at - (of - 1) / 2))


def _differs(row: ReportRow, line: list[ReportRow], measure: Measure) -> bool:
    """Whether a detector moved this value: where it moved none, its line would hide the other."""
    return all(measure.of(o)[0] != measure.of(row)[0] for o in line if o.budget == row.budget)


def _draw_line(
    axis: Any,
    line: list[ReportRow],
    measure: Measure,
    aside: float,
    style: dict[str, Any],
    bars: bool = True,
) -> None:
    points = [(row.budget * aside, *measure.of(row)) for row in line if row.budget is not None]
    # What is not known is a gap: no line leads over it.
    values = [math.nan if value is None else value for _, value, _, _ in points]
    axis.plot([x for x, *_ in points], values, **style)
    for x, value, low, high in points if bars else []:
        if value is not None and low is not None and high is not None:
            axis.vlines(x, low, high, color=style["color"], linewidth=1.0, alpha=0.65, zorder=2)
