"""Figures 1, 2 and 4: charts against budget, one column a data set, one line a backend."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from experiments.report.chart_sets import censored
from experiments.report.charts import (
    NONE_SOLVED,
    Axis,
    Chart,
    ChartSet,
    Panel,
    Point,
    Series,
)
from experiments.report.figures.style import (
    FULL,
    cut,
    finish,
    footer,
    look,
    other_detectors,
    panel_title,
    panels,
)

_HEIGHTS = {"cut": 1.05, "compression": 2.6, "cost": 2.9}  # inches; others:
_HEIGHT = 2.35
_LENGTH = (
    "a longer text of the same kind compresses better, so a lower ratio of longer outputs alone is "
    "no sign of repetition"
)
_CUT = "their ratios are those of what there is"
_NO_BAR = "no bar: fewer than six problems are solved, or differ"


def accuracy_length(of: ChartSet, under: str, conditions: Sequence[str]) -> Figure:
    """Figure 1: accuracy, output length and, where any was cut, the share cut at the cap.

    Solid without, dotted and hollow with the detector; full attention dashed. Bars and band are 95%
    intervals.
    """
    notes = [*footer(of.rows, conditions), *cut(of.rows), *other_detectors(of)]
    shown = [of.chart("accuracy"), of.chart("length")]
    if any(row.capped for row in of.rows):
        shown.append(of.chart("cut"))
    else:
        notes.append("no output was cut at the cap")
    title = f"Accuracy and output length against cache budget, with 95% intervals{under}"
    return _figure(of, shown, title, notes)


def compression(of: ChartSet, under: str, conditions: Sequence[str]) -> Figure:
    """Figure 2: compression ratio of whole outputs."""
    title = f"Compression ratio of the output against cache budget, with 95% intervals{under}"
    notes = [*footer(of.rows, conditions), _LENGTH, *cut(of.rows, _CUT), *other_detectors(of)]
    return _figure(of, [of.chart("compression")], title, notes)


def cost(of: ChartSet, under: str, conditions: Sequence[str]) -> Figure:
    """Figure 4: keys read per solved problem over full attention's, logarithmic.

    Where none is solved there is a gap, and a cross at the panel's upper end says so.
    """
    title = f"Keys read per solved problem against cache budget, with 95% intervals{under}"
    notes, chart = footer(of.rows, conditions), of.chart("cost")
    if left_out := censored(of.rows):
        notes.append(
            f"of a configuration's pairs, {left_out} or fewer are in no ratio: full attention was "
            "cut itself at its cap"
        )
    points = [point for panel in chart.panels for line in panel.lines for point in line.points]
    if any(point.y is not None and point.high is None for point in points):
        notes.append(_NO_BAR)
    more = []
    if any(point.missing == NONE_SOLVED for point in points):
        label = "none solved: no cost"
        more.append(Line2D([], [], color=FULL, marker="x", linestyle="none", label=label))
    return _figure(of, [chart], title, [*notes, *other_detectors(of)], more)


def _figure(
    of: ChartSet,
    charts: Sequence[Chart],
    title: str,
    notes: Sequence[str],
    more: Sequence[Line2D] = (),
) -> Figure:
    """The charts below each other; `more` stands at the legend's end."""
    heights = [_HEIGHTS.get(chart.key, _HEIGHT) for chart in charts]
    figure, axes = panels(heights, len(charts[0].panels))
    for down, chart in enumerate(charts):
        for across, panel in enumerate(chart.panels):
            axis = axes[down][across]
            _draw(axis, chart, panel, heights[down] < 2)
            if down == 0:
                axis.set_title(panel_title(panel.dataset, panel.words))
            if down == len(charts) - 1:
                axis.set_xlabel(chart.x.label)
        axes[down][0].set_ylabel(chart.y.label)
    finish(figure, title, [*_handles(of, charts), *more], notes)
    return figure


def _handles(of: ChartSet, charts: Sequence[Chart]) -> list[Line2D]:
    every = [panel for chart in charts for panel in chart.panels]
    styles = {line.name: line.style for panel in every for line in panel.lines}
    handles = []
    for name, style in styles.items():
        colour, mark = look(style)
        handles.append(Line2D([], [], color=colour, marker=mark, label=name))
    levels = {level.style.role for panel in every for level in panel.levels}
    handles.append(Line2D([], [], color=FULL, linestyle="--", label="full attention"))
    if "null" in levels:
        label = "null: full attention against itself"
        handles.append(Line2D([], [], color=FULL, linestyle=":", label=label))
    if of.detector and any(panel.under_detector for panel in every):
        label = f"with {of.detector[0]} ({of.detector[1]})"
        dotted: dict[str, Any] = {"linestyle": ":", "marker": "o", "markerfacecolor": "white"}
        handles.append(Line2D([], [], color="#888888", label=label, **dotted))
    return handles


def _draw(axis: Any, chart: Chart, panel: Panel, is_low: bool) -> None:
    budgets = chart.x.ticks
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(budgets))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([str(budget) for budget in budgets])
    margin = max(1.35, (budgets[-1] / budgets[0]) ** 0.12)
    axis.set_xlim(budgets[0] / margin, budgets[-1] * margin)
    for level in panel.levels:
        (value,) = level.points
        low, high, is_full = value.low, value.high, level.style.role == "full"
        rule = {"linestyle": "--" if is_full else ":", "linewidth": 1.2, "zorder": 1}
        axis.axhline(value.y, color=FULL, **rule)
        if is_full and low is not None and high is not None and low < high:
            axis.axhspan(low, high, color=FULL, alpha=0.09, linewidth=0, zorder=0)
    under = {line.name: line for line in panel.under_detector}
    for at, line in enumerate(panel.lines):
        aside = _shift(at, len(panel.lines), budgets)
        _draw_line(axis, line, aside, {"zorder": 3})
        if line.name in under:
            hollow = {"markerfacecolor": "white", "linestyle": ":", "linewidth": 1.2, "zorder": 2}
            _draw_line(axis, under[line.name], aside, hollow)
    if chart.y.is_log:
        _log_scale(axis, panel, budgets)
    else:
        _scale(axis, chart.y, is_low)


def _scale(axis: Any, y: Axis, is_low: bool) -> None:
    if y.unit == "percent":
        axis.set_ylim(-0.05, 1.05)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        ticks = [0, 0.5, 1] if is_low else [0, 0.2, 0.4, 0.6, 0.8, 1]
        axis.yaxis.set_major_locator(FixedLocator(ticks))
    else:
        axis.margins(y=0.12)  # the highest mark is below the end, not cut by it
        axis.set_ylim(bottom=y.low)


def _log_scale(axis: Any, panel: Panel, budgets: Sequence[int]) -> None:
    """The scale, with crosses where none is solved; words where there is nothing to draw."""
    points = [point for line in panel.series for point in line.points]
    known = [y for point in points for y in (point.y, point.low, point.high) if y]
    low, high = min([0.5, *known]) / 1.25, max([2.0, *known]) * 1.25
    missing = dict.fromkeys(point.missing for line in panel.lines for point in line.points)
    if NONE_SOLVED in missing:
        high *= 1.6  # room of their own for the crosses
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    steps = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for at, line in enumerate(panel.lines):
        colour, _ = look(line.style)
        for point in line.points:
            if point.missing == NONE_SOLVED:
                x = _at(point) * _shift(at, len(panel.lines), budgets)
                axis.plot([x], [high / 1.25], "x", color=colour, markersize=5, clip_on=False)
    if "" not in missing and (reasons := [why for why in missing if why != NONE_SOLVED]):
        text = "\n".join(textwrap.fill(reason, 30) for reason in reasons)
        axis.text(0.5, 0.6, text, transform=axis.transAxes, ha="center", fontsize=8)


def _shift(at: int, of: int, budgets: Sequence[int]) -> float:
    """Each backend a little aside of the tick, so that bars do not hide each other."""
    octaves = [math.log2(high / low) for low, high in pairwise(budgets)]
    # So much of the axis for each, but neighbours' groups stay apart.
    step = min([0.018 * (sum(octaves) + 0.87), *(0.8 * octave / of for octave in octaves)])
    return math.exp2(step * (at - (of - 1) / 2))


def _draw_line(axis: Any, line: Series, aside: float, style: dict[str, Any]) -> None:
    colour, mark = look(line.style)
    # What is not known is a gap: no line leads over it.
    values = [math.nan if point.y is None else point.y for point in line.points]
    places = [_at(point) * aside for point in line.points]
    axis.plot(places, values, color=colour, marker=mark, **style)
    for x, point in zip(places, line.points, strict=True):
        if point.y is not None and point.low is not None and point.high is not None:
            axis.vlines(x, point.low, point.high, color=colour, linewidth=1.0, alpha=0.65, zorder=2)


def _at(point: Point) -> float:
    assert point.x is not None, "a line's points have a budget each"
    return point.x
