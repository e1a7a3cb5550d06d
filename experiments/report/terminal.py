"""Accuracy and output length against budget, drawn with characters: Figure 1 for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from experiments.report.charts import Axis, Chart, ChartSet, Panel, Point, Series, Style

# Filled, and hollow under a detector; those of controls are their own.
_MARKS = ("●▲■◆▼◀▶", "○△□◇▽◁▷")
_CONTROL_MARKS = ("★♥♠♣", "☆♡♤♧")
_LEVELS = {"full": "╌", "null": "·"}
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_SEVERAL = "*"  # two marks in one cell, where the width leaves no choice
_MARGIN = 5  # the axis and its numbers
_APART = 3  # columns between two charts
_SIDE_BY_SIDE = 72
#: The charts there is room for, and what is said of them in few columns.
_SHOWN = {"accuracy": "solved, %", "length": "output tokens"}


@dataclass
class _Canvas:
    width: int
    height: int
    cells: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    def text(self, at: int) -> Text:
        line = Text()
        for column in range(self.width):
            line.append(*self.cells.get((at, column), (" ", "")))
        return line


def draw(sets: Sequence[ChartSet], width: int = 80, height: int = 9) -> Text:
    """One panel per model, penalty and data set, one mark and colour per backend.

    It can be read without colour. Every backend has its own column beside each budget, so that
    equal values stay visible. Bars are 95% intervals, the dashed line is full attention, a hollow
    mark the same under one detector where that lies elsewhere. Budgets stand at equal steps; each
    axis of length has its own scale.

    Args:
        sets: charts of every model and penalty.
        width: columns to fill; the two charts stand side by side from 72 columns on.
        height: lines of a chart without its axis.
    """
    several = len({of.model for of in sets}) > 1
    panels = []
    for of in sets:
        charts = [of.chart(key) for key in _SHOWN]
        for at in range(len(charts[0].panels)):
            head = _head(of, [chart.panels[at] for chart in charts], several)
            panels.append(Text("\n").join([head, *_beside(charts, at, width, height)]))
    for panel in panels:
        panel.rstrip()
    return Text("\n\n").join(panels)


def _head(of: ChartSet, panels: Sequence[Panel], several: bool) -> Text:
    head = Text(f"{panels[0].dataset} ", style="bold")
    if several:
        head.append(f"({of.model}) ")
    if of.penalty != "none":
        head.append(f"with {of.penalty} ")
    for line in panels[0].lines:
        head.append(f" {_mark(line)} {line.name} ", style=_colour(line.style))
    head.append(f" {_LEVELS['full']} full")
    if any(level.style.role == "null" for panel in panels for level in panel.levels):
        head.append(f"  {_LEVELS['null']} null")
    if of.detector is not None and any(panel.under_detector for panel in panels):
        name, action = of.detector
        head.append(f"  hollow: {name} ({action})")
        head.append(f", 1 of {len(of.others) + 1}" if of.others else "")
    return head


def _mark(line: Series) -> str:
    filled, hollow = _CONTROL_MARKS if line.style.role == "control" else _MARKS
    return (filled if line.detector is None else hollow)[line.style.mark % len(filled)]


def _colour(style: Style) -> str:
    return _COLOURS[style.colour % len(_COLOURS)]


def _beside(charts: Sequence[Chart], at: int, width: int, height: int) -> list[Text]:
    """The lines of all charts' panels of that number, side by side where there is room."""
    is_wide = width >= _SIDE_BY_SIDE
    each = (width - _APART) // 2 if is_wide else width
    drawn = [_chart(chart, chart.panels[at], each, height) for chart in charts]
    if is_wide:
        parts = [
            Text.assemble(left, " " * (each + _APART - left.cell_len), right)
            for left, right in zip(*drawn, strict=True)
        ]
    else:
        parts = [line for lines in drawn for line in lines]
    for part in parts:
        part.rstrip()
    return parts


def _chart(chart: Chart, panel: Panel, width: int, height: int) -> list[Text]:
    times = 100.0 if chart.y.unit == "percent" else 1.0
    points = [point for one in panel.series for point in one.points]
    known = [at for p in points for at in (p.y, p.low, p.high) if at is not None]
    top = _top(times * max(known, default=1.0 / times))
    canvas = _Canvas(width - _MARGIN - 1, height)

    def at(value: float) -> int:
        return round((1 - times * value / top) * (height - 1))

    for level in reversed(panel.levels):
        (point,) = level.points
        if point.y is not None:
            for column in range(0, canvas.width, 1 if level.style.role == "full" else 2):
                canvas.cells[at(point.y), column] = (_LEVELS[level.style.role], "")
    centres = _draw_lines(canvas, chart.x, panel, at)
    texts = [Text(_SHOWN[chart.key], style="dim")]
    every = (height - 1) // 4 or 1
    for row in range(height):
        label = f"{top * (1 - row / (height - 1)):.0f}" if row % every == 0 else ""
        texts.append(Text.assemble(f"{label:>{_MARGIN}}", "┤" if label else "│", canvas.text(row)))
    texts.append(Text(" " * _MARGIN + "└" + "─" * canvas.width))
    labels = _budget_labels(list(centres), list(centres.values()), canvas.width)
    return [*texts, Text(" " * (_MARGIN + 1) + labels)]


def _draw_lines(
    canvas: _Canvas, x: Axis, panel: Panel, at: Callable[[float], int]
) -> dict[int, int]:
    """Draw every line's marks; the columns of the budgets that this panel has."""
    lines = panel.lines
    under = {(one.name, p.x): (p, _mark(one)) for one in panel.under_detector for p in one.points}
    there = {point.x for line in lines for point in line.points}
    budgets = [budget for budget in x.ticks if budget in there]
    step = canvas.width / max(1, len(budgets))
    spread = (step - 1) / max(1, len(lines))
    spread = min(2.0, float(int(spread))) if spread >= 1 else spread
    centres = {budget: int(step * (index + 0.5)) for index, budget in enumerate(budgets)}
    taken: set[tuple[int, int]] = set()
    for index, line in enumerate(lines):
        aside = math.floor((index - (len(lines) - 1) / 2) * spread + 0.5)
        of_budget = {point.x: point for point in line.points}
        for budget, centre in centres.items():
            if (point := of_budget.get(budget)) is None or point.y is None:
                continue
            colour, column = _colour(line.style), centre + aside
            _draw_bar(canvas, point, column, colour, at, taken)
            cell = (at(point.y), column)
            canvas.cells[cell] = (_SEVERAL if cell in taken else _mark(line), colour)
            taken.add(cell)
            moved, hollow = under.get((line.name, budget), (point, ""))
            if moved.y is not None and (at(moved.y), column) not in taken:
                canvas.cells[at(moved.y), column] = (hollow, colour)
                taken.add((at(moved.y), column))
    return centres


def _draw_bar(
    canvas: _Canvas,
    point: Point,
    column: int,
    colour: str,
    at: Callable[[float], int],
    taken: set[tuple[int, int]],
) -> None:
    if point.low is not None and point.high is not None:
        for row in range(at(point.high), at(point.low) + 1):
            if (row, column) not in taken:
                canvas.cells[row, column] = ("│", colour)


def _top(highest: float) -> float:
    """The end of an axis from 0: four equal steps of a round number, all whole."""
    step = max(1.0, highest / 4) * (1 - 1e-9)
    size = 10.0 ** max(0, math.floor(math.log10(step)))
    steps = (size * m for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 8, 10))
    return 4 * next(s for s in steps if s >= step and s == int(s))


def _budget_labels(budgets: list[int], centres: list[int], width: int) -> str:
    """Budgets under their columns; one is left out where the one before leaves no room."""
    text = ""
    for budget, centre in zip(budgets, centres, strict=True):
        start = max(0, min(centre - len(str(budget)) // 2, width - len(str(budget))))
        if not text or start > len(text):
            text = text.ljust(start) + str(budget)
    return text
