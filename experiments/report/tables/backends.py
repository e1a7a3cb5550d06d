"""Every backend and budget beside full attention: answers and lengths, costs, several samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from experiments.report.names import shortly_named
from experiments.report.row import AtCap, Cheaper, ReportRow, series
from experiments.report.statistics import NOTHING
from experiments.report.tables.cells import (
    TableCell,
    change,
    incomplete,
    large,
    percent,
    ratio,
    share,
)
from experiments.report.tables.grid import Grid, Line
from experiments.report.tables.parts import (
    at_positions,
    budget_label,
    censored,
    parts,
    problems,
    under,
)

_CLAIMED = (
    "brackets: 95% intervals, none where fewer than six problems differ; bold: said to differ, by "
    "an exact test of six or more problems, corrected for all rows of a cap, by 2% or more, and "
    "clear of the null's interval where there is a null"
)
_CAPTION = (
    "solved: %; change: points against full attention; length: times full attention's, the mean "
    "over problems of logs clipped at the cap's factor; diff: problems with another length; cut: "
    f"% of outputs cut at the cap; {_CLAIMED}"
)
_COST_CAPTION = (
    "both solve: length over the n samples that it and full attention solve; keys: read per solved "
    "problem, full attention's as a number; both times full attention's; packed: compressed over "
    f"original bytes; loops: % of outputs with a block repeated 20 times; {_CLAIMED}"
)
_CAPS_CAPTION = (
    "the same texts read at a smaller cap, what is longer cut there; columns as in the tables above"
)
_SAMPLING_CAPTION = (
    "pass@k: % of problems that at least one of k samples solves; unbiased (Chen et al. 2021), "
    "pass@1 is avg@k, the share of all samples; brackets: 95% intervals, problems resampled"
)
_MOST = 4  # intervals beside each other in 80 columns

Cells = Callable[[ReportRow], Iterable[TableCell]]


def main_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """One table per model, penalty and data set: every backend and budget beside full attention.

    What all are measured against is full attention without penalty.
    """
    names = ("solved", "change", "length", "diff", "cut")
    every = parts(shortly_named(rows))
    found = [_grid(part, names, _main_cells, _title(part)) for part in every]
    return [
        replace(grid, caption="; ".join(filter(None, (at_positions(part), grid.caption))))
        for part, grid in zip(every, _with_caption(found, _CAPTION), strict=True)
    ]


def cost_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """One table per model, penalty and data set: what a solved problem costs, and how texts end."""
    names = ("both solve", "n", "keys/solved", "packed", "loops")
    found = [
        _grid(part, names, _cost_cells, _cost_title(part)) for part in parts(shortly_named(rows))
    ]
    return _with_caption(found, _COST_CAPTION)


def caps_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """The main numbers at each smaller cap; nothing where results are read at one cap alone."""
    names = ("solved", "length", "cut", "both solve", "n")
    found = []
    for part in parts(shortly_named(rows)):
        for at, cap in enumerate(part[0].caps):
            title = f"{part[0].dataset}, read at {cap.factor} times full attention's length "
            title += f"({part[0].model}{under(part[0].penalty)})"
            found.append(_grid(part, names, _cap_cells(at), title))
    return _with_caption(found, _CAPS_CAPTION)


def _cap_cells(at: int) -> Cells:
    def cells(row: ReportRow) -> list[TableCell]:
        cap = row.caps[at]
        cut = TableCell(f"{percent(cap.capped / row.samples)}%") if row.samples else TableCell()
        solved = share(cap.accuracy)
        if row.is_baseline:
            return [solved, TableCell(), cut, TableCell(), TableCell()]
        count = (
            TableCell()
            if cap.length_ratio_solved.estimate is None
            else TableCell(str(cap.solved_by_both))
        )
        return [solved, _length(cap), cut, _both(cap), count]

    return cells


def sampling_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """pass@k where problems have several samples; nothing where they have one."""
    found = []
    for part in parts(shortly_named(rows)):
        known = sorted({k for row in part for k in row.pass_at})
        if known:
            chosen = _some(known)
            names = tuple(f"pass@{k}" for k in chosen)
            title = f"{part[0].dataset}: {problems(part)} ({part[0].model}{under(part[0].penalty)})"
            found.append(_grid(part, names, _sampling_cells(chosen), title))
    return _with_caption(found, _SAMPLING_CAPTION)


def _some(known: list[int]) -> list[int]:
    """The first, the last and those evenly between, as many as there is room for."""
    if len(known) <= _MOST:
        return known
    return [known[round(at * (len(known) - 1) / (_MOST - 1))] for at in range(_MOST)]


def _with_caption(grids: list[Grid], caption: str) -> list[Grid]:
    return [*grids[:-1], replace(grids[-1], caption=caption)] if grids else []


def _grid(part: list[ReportRow], names: Sequence[str], cells: Cells, title: str) -> Grid:
    lines = []
    for label, line in series(part).items():
        for row in line:
            there = row.samples - row.missing - row.errors
            shown = cells(row) if row.is_complete else incomplete(there, row.samples, len(names))
            lines.append(Line((label,), (TableCell(budget_label(row)), *shown)))
    return Grid(title, ("backend", "budget", *names), tuple(lines))


def _main_cells(row: ReportRow) -> list[TableCell]:
    accuracy = share(row.accuracy)
    cut = TableCell(f"{percent(row.capped / row.samples)}%") if row.samples else TableCell()
    if row.is_baseline:
        return [accuracy, TableCell(), TableCell(), TableCell(), cut]
    moved = change(
        row.accuracy_change,
        not {"loses", "gains"}.isdisjoint(row.claims),
    )
    differ = (
        TableCell()
        if row.length_ratio.estimate is None
        else TableCell(str(row.length_ratio.differs))
    )
    return [accuracy, moved, _length(row), differ, cut]


def _length(row: ReportRow | AtCap) -> TableCell:
    claimed = not {"longer", "shorter"}.isdisjoint(row.claims)
    return ratio(row.length_ratio, claimed)


def _both(row: ReportRow | AtCap) -> TableCell:
    return ratio(
        row.length_ratio_solved,
        not {"longer solved", "shorter solved"}.isdisjoint(row.claims),
    )


def _cost_cells(row: ReportRow) -> list[TableCell]:
    both = count = keys = TableCell()
    if row.length_ratio_solved.estimate is not None:
        count = TableCell(str(row.solved_by_both))
    if row.is_baseline:
        if row.keys_read_per_solved.estimate is not None:
            keys = TableCell(large(row.keys_read_per_solved.estimate))
    else:
        both = _both(row)
        keys = ratio(
            row.keys_read_per_solved_ratio,
            not {"fewer keys", "more keys"}.isdisjoint(row.claims),
        )
    if row.accuracy.estimate == 0:
        keys = TableCell("none solved")  # so that no cost can be said
    compressed = (
        TableCell()
        if row.compression_ratio.estimate is None
        else TableCell(f"{row.compression_ratio.estimate:.2f}")
    )
    loops = (
        TableCell()
        if row.repetition_rate is None
        else TableCell(f"{percent(row.repetition_rate)}%")
    )
    return [both, count, keys, compressed, loops]


def _sampling_cells(chosen: list[int]) -> Cells:
    return lambda row: [share(row.pass_at.get(k, NOTHING)) for k in chosen]


def _title(part: list[ReportRow]) -> str:
    first = part[0]
    title = f"{first.dataset}: {problems(part)} ({first.model}{under(first.penalty)})"
    failed = sum(row.errors for row in part)
    title += censored(part)
    return title + (f"; {failed} samples failed (lil sweep --retry-failed)" if failed else "")


def _cost_title(part: list[ReportRow]) -> str:
    first = part[0]
    title = f"{first.dataset}: cost ({first.model}{under(first.penalty)}){censored(part)}"
    told = [
        f"{label}: {_cheaper(line[0].cheaper)}"
        for label, line in series(part).items()
        if line[0].cheaper is not None
    ]
    return title + (
        f"; fewer keys per solved problem at budgets: {', '.join(told)}" if told else ""
    )


def _cheaper(at: Cheaper) -> str:
    if at.first is None or at.last is None:
        return f"none of {at.of}"
    first = ("≤" if at.first_kind == "at most" else "") + f"{at.first:.0f}"
    last = ("≥" if at.last_kind == "at least" else "") + f"{at.last:.0f}"
    return f"{first} to {last} ({at.budgets} of {at.of})"
