"""Accuracy and output length against budget, drawn with characters: Figure 1 for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from experiments.report.names import shortly_named
from experiments.report.row import ReportRow, by_penalty, dataset_order, series, shown_detector

_MARKS = "●▲■◆★♥"
_HOLLOW = "○△□◇☆♡"
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_SEVERAL = "*"  # two marks in one cell, where the width leaves no choice
_MARGIN = 5  # the axis and its numbers
_APART = 3  # columns between two charts
_SIDE_BY_SIDE = 72

Point = tuple[float | None, float | None, float | None]  # value, low, high


@dataclass(frozen=True)
class _Line:
    label: str
    mark: str
    hollow: str
    colour: str
    plain: dict[int, ReportRow]  # by budget
    watched: dict[int, ReportRow]  # the same under the first detector


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


def draw(rows: Sequence[ReportRow], width: int = 80, height: int = 9) -> Text:
    """One panel per penalty, model and data set, one mark and colour per backend.

    It can be read without colour. Every backend has its own column beside each budget, so that
    equal values stay visible. Bars are 95% intervals, the dashed line is full attention, a hollow
    mark the same under one detector where that lies elsewhere. Budgets stand at equal steps; each
    axis of length has its own scale.

    Args:
        width: columns to fill; the two charts stand side by side from 72 columns on.
        height: lines of a chart without its axis.
    """
    panels = []
    rows = shortly_named(rows)
    for penalty, part in by_penalty(rows).items():
        apart = {(r.model, r.dataset) for r in part}
        for key in sorted(apart, key=lambda k: (k[0], dataset_order(k[1]))):
            here = [r for r in rows if (r.model, r.dataset) == key]
            shown = [r for r in here if r.penalty == penalty or r.is_baseline or r.role == "null"]
            panels.append(_panel(shown, penalty, width, height))
    return Text("\n\n").join(panels)


def _panel(rows: list[ReportRow], penalty: str, width: int, height: int) -> Text:
    lines = _lines(rows)
    full = next((r for r in rows if r.is_baseline and r.detector == "none"), None)
    null = next((r for r in rows if r.role == "null"), None)
    head = Text(f"{rows[0].dataset} ", style="bold")
    if penalty != "none":
        head.append(f"with {penalty} ")
    for line in lines:
        head.append(f" {line.mark} {line.label} ", style=line.colour)
    head.append(" ╌ full")
    if null is not None:
        head.append("  · null")
    if any(line.watched for line in lines):
        name, action = next(r for line in lines for r in line.watched.values()).watched
        others = len({row.watched for row in rows if row.detector != "none"}) - 1
        head.append(f"  hollow: {name} ({action})" + (f", 1 of {others + 1}" if others else ""))
    parts = [head]
    beside = width >= _SIDE_BY_SIDE
    each = (width - _APART) // 2 if beside else width
    accuracy = _chart("solved, %", lines, (full, null), _accuracy, each, height)
    length = _chart("output tokens", lines, (full, null), _tokens, each, height)
    if beside:
        parts += [
            Text.assemble(left, " " * (each + _APART - left.cell_len), right)
            for left, right in zip(accuracy, length, strict=True)
        ]
    else:
        parts += accuracy + length
    for part in parts:
        part.rstrip()
    return Text("\n").join(parts)


def _lines(rows: list[ReportRow]) -> list[_Line]:
    watched = shown_detector(rows)
    plain = series([r for r in rows if r.detector == "none" and r.budget is not None])
    under = series([r for r in rows if r.watched == watched and r.budget is not None])
    return [
        _Line(
            label,
            _MARKS[at % len(_MARKS)],
            _HOLLOW[at % len(_HOLLOW)],
            _COLOURS[at % len(_COLOURS)],
            {row.budget: row for row in line if row.budget is not None},
            {row.budget: row for row in under.get(label, []) if row.budget is not None},
        )
        for at, (label, line) in enumerate(plain.items())
    ]


def _accuracy(row: ReportRow) -> Point:
    values = (row.accuracy.estimate, row.accuracy.low, row.accuracy.high)
    value, low, high = (None if at is None else 100 * at for at in values)
    return value, low, high


def _tokens(row: ReportRow) -> Point:
    return row.mean_tokens.estimate, row.mean_tokens.low, row.mean_tokens.high


def _chart(
    title: str,
    lines: list[_Line],
    beside: tuple[ReportRow | None, ReportRow | None],
    measure: Callable[[ReportRow], Point],
    width: int,
    height: int,
) -> list[Text]:
    shown = [row for line in lines for row in (*line.plain.values(), *line.watched.values())]
    points = [measure(row) for row in [*shown, *(row for row in beside if row is not None)]]
    top = _top(max((at for point in points for at in point if at is not None), default=1.0))
    canvas = _Canvas(width - _MARGIN - 1, height)

    def at(value: float) -> int:
        return round((1 - value / top) * (height - 1))

    for other, sign, gap in ((beside[1], "·", 2), (beside[0], "╌", 1)):
        reference = measure(other)[0] if other else None
        if reference is not None:
            for column in range(0, canvas.width, gap):
                canvas.cells[at(reference), column] = (sign, "")
    budgets = sorted({budget for line in lines for budget in line.plain})
    step = canvas.width / max(1, len(budgets))
    spread = (step - 1) / max(1, len(lines))
    spread = min(2.0, float(int(spread))) if spread >= 1 else spread
    centres = [int(step * (index + 0.5)) for index in range(len(budgets))]
    taken: set[tuple[int, int]] = set()
    for index, line in enumerate(lines):
        for centre, budget in zip(centres, budgets, strict=True):
            column = centre + math.floor((index - (len(lines) - 1) / 2) * spread + 0.5)
            if budget in line.plain:
                _mark(canvas, measure, line, budget, column, at, taken)
    texts = [Text(title, style="dim")]
    every = (height - 1) // 4 or 1
    for row in range(height):
        label = f"{top * (1 - row / (height - 1)):.0f}" if row % every == 0 else ""
        texts.append(Text.assemble(f"{label:>{_MARGIN}}", "┤" if label else "│", canvas.text(row)))
    texts.append(Text(" " * _MARGIN + "└" + "─" * canvas.width))
    texts.append(Text(" " * (_MARGIN + 1) + _budget_labels(budgets, centres, canvas.width)))
    return texts


def _mark(
    canvas: _Canvas,
    measure: Callable[[ReportRow], Point],
    line: _Line,
    budget: int,
    column: int,
    at: Callable[[float], int],
    taken: set[tuple[int, int]],
) -> None:
    value, low, high = measure(line.plain[budget])
    if value is None:
        return
    if low is not None and high is not None:
        for row in range(at(high), at(low) + 1):
            if (row, column) not in taken:
                canvas.cells[row, column] = ("│", line.colour)
    cell = (at(value), column)
    canvas.cells[cell] = (_SEVERAL if cell in taken else line.mark, line.colour)
    taken.add(cell)
    under = measure(line.watched[budget])[0] if budget in line.watched else None
    if under is not None and (at(under), column) not in taken:
        canvas.cells[at(under), column] = (line.hollow, line.colour)
        taken.add((at(under), column))


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
