"""What each detector does over all sparse configurations together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from experiments.report.pooled import DetectorPool
from experiments.report.statistics import Interval
from experiments.report.tables.cells import TableCell, percent, points, share
from experiments.report.tables.grid import Grid, Line
from experiments.report.tables.parts import under

_CAPTION = (
    "saved, of tokens; loops and tails, of what unsolved texts cut by the cap spent in a loop at "
    "their end, and in a tail nearly all seen before; net: answers gained less lost, in points of "
    "all; 95% intervals, problems resampled, bold where they leave out 0; cells: configurations "
    "that lose beyond chance, Holm's correction for all of them; full: stops of full attention's "
    "texts that end by themselves, with the 95% upper bound of their rate"
)
_COLUMNS = (
    "detector", "then", "saved", "loops", "tails", "lost", "gained", "net", "cells", "full"
)  # fmt: skip


def stopping_grids(found: Sequence[DetectorPool]) -> list[Grid]:
    """One table per model and penalty, a line for each detector and action."""
    apart: dict[tuple[str, str], list[DetectorPool]] = defaultdict(list)
    for one in found:
        apart[one.model, one.penalty].append(one)
    return [
        Grid(
            f"Detectors over all sparse configurations ({model}{under(penalty)})",
            _COLUMNS,
            tuple(Line((one.detector,), _cells(one)) for one in part),
            _CAPTION,
        )
        for (model, penalty), part in apart.items()
    ]


def _cells(one: DetectorPool) -> tuple[TableCell, ...]:
    if one.missing:
        return TableCell(one.action), *incomplete(one.missing, 8)
    full = one.full
    return (
        TableCell(one.action),
        share(one.tokens),
        share(one.loops),
        share(one.tails),
        *_answers(one),
        TableCell(f"{full.stopped} of {full.traces}", f"[{percent(full.high)}]"),
    )


def _answers(one: DetectorPool) -> tuple[TableCell, ...]:
    """What it does to answers; dashes where none was judged."""
    if not one.cells:
        return (TableCell(),) * 4
    losing = TableCell(str(len(one.losing)), bold=bool(one.losing))
    return TableCell(str(one.lost)), TableCell(str(one.gained)), _net(one.net), losing


def incomplete(missing: int, columns: int) -> list[TableCell]:
    """Without the longest texts there is nothing to compare."""
    said = [TableCell(f"{missing} missing"), TableCell("not comparable")]
    return [*said, *[TableCell()] * columns][:columns]


def _net(found: Interval) -> TableCell:
    if found.estimate is None or found.low is None or found.high is None:
        return TableCell(points(found.estimate))
    told = f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    return TableCell(points(found.estimate), told, bold=found.low > 0 or found.high < 0)
