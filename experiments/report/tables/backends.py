"""Every backend and budget against full attention: answers and lengths, costs, several samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from experiments.grid.needles import PART
from experiments.report.claims import differing
from experiments.report.names import counted, series
from experiments.report.row import AtCap, ReportRow, dataset_order
from experiments.report.statistics import LEAST, NOTHING
from experiments.report.tables.grid import (
    Grid,
    Line,
    TableCell,
    change,
    incomplete,
    large,
    number,
    ratio,
    share,
    whole_percent,
)

_CLAIMED = (
    "brackets: 95% intervals, none where fewer than six problems differ; bold: the difference is "
    "clear: at least 2% over six or more problems, significant after correction for all rows of a "
    "cap, and larger than that of the null where there is a null"
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
    "pass@1 is the share of all samples; brackets: 95% intervals, problems resampled"
)
_COMPARED = (
    "solved: %; against full attention or the random sample, on the same problems: points, and "
    "times its tokens and keys; said of answers and keys alone: a broken text may be short; too "
    f"few problems: fewer than six are solved or differ; {_CLAIMED}"
)
_DEPTH_CAPTION = "% of the facts in that part of a text that answers give; brackets: 95% intervals"
_MOST = 4  # intervals side by side in 80 columns
_EMPTY = TableCell()

Cells = Callable[[ReportRow], Iterable[TableCell]]


def main_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """One table per model, penalty and data set: every backend and budget and full attention."""
    names = ("solved", "change", "length", "diff", "cut")
    grids = [_grid(part, names, _main_cells, _title(part)) for part in parts(rows)]
    return _with_caption(grids, _CAPTION)


def cost_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """One table per model, penalty and data set: what a solved problem costs, and how texts end."""
    names = ("both solve", "n", "keys/solved", "packed", "loops")
    grids = []
    for part in parts(rows):
        title = f"{part[0].dataset}: cost {_subject(part[0])}{_censored(part)}"
        grids.append(_grid(part, names, _cost_cells, title))
    return _with_caption(grids, _COST_CAPTION)


def caps_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """The main numbers at each smaller cap; nothing where results are read at one cap alone."""
    names = ("solved", "length", "cut", "both solve", "n")
    grids = []
    for part in parts(rows):
        for at, cap in enumerate(part[0].caps):
            title = f"{part[0].dataset}, read at {cap.factor} times full attention's length "
            grids.append(_grid(part, names, _cap_cells(at), title + _subject(part[0])))
    return _with_caption(grids, _CAPS_CAPTION)


def sampling_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """pass@k where problems have several samples; nothing where they have one."""
    grids = []
    for part in parts(rows):
        sizes = sorted({k for row in part for k in row.pass_at})
        if len(sizes) > _MOST:  # the first, the last and those evenly between
            sizes = [sizes[round(at * (len(sizes) - 1) / (_MOST - 1))] for at in range(_MOST)]
        if sizes:
            names = tuple(f"pass@{k}" for k in sizes)
            title = f"{part[0].dataset}: {_problems(part)} {_subject(part[0])}"
            grids.append(_grid(part, names, _cells_of("pass_at", sizes), title))
    return _with_caption(grids, _SAMPLING_CAPTION)


def comparison_grid(rows: Sequence[ReportRow], against_random: Sequence[ReportRow]) -> Grid:
    """One data set and budget: every method alone, against full attention and against random."""
    others = [row for row in rows if not row.is_baseline]
    names = ("solved", "tokens", "keys/solved", "may be said")
    blocks = [
        ("", _grid(rows, names, _own_cells)),
        ("full", _grid(others, names, partial(_compared_cells, "full"))),
        ("random", _grid(against_random, names, partial(_compared_cells, "random"))),
    ]
    lines = [Line((name, *line.labels), line.cells) for name, grid in blocks for line in grid.lines]
    return Grid(_title(rows), ("against", "backend", "budget", *names), tuple(lines), _COMPARED)


def depth_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """Needles found by depth, one table for each data set of needles."""
    names = {at: f"{at}-{at + PART}%" for at in range(0, 100, PART)}
    grids = []
    for part in parts(rows):
        if any(row.recall_by_depth for row in part):
            title = f"{part[0].dataset}: needles found by depth {_subject(part[0])}"
            grids.append(_grid(part, [*names.values()], _cells_of("recall_by_depth", names), title))
    return _with_caption(grids, _DEPTH_CAPTION)


def parts(rows: Sequence[ReportRow]) -> list[list[ReportRow]]:
    """Rows without detector of one model, penalty and data set together, in reading order."""
    plain = [row for row in rows if row.detector == "none"]
    keys = {(row.model, row.penalty, row.dataset) for row in plain}
    ordered = sorted(keys, key=lambda k: (k[0], k[1] != "none", k[1], dataset_order(k[2])))
    return [[r for r in plain if (r.model, r.penalty, r.dataset) == key] for key in ordered]


def _subject(row: ReportRow) -> str:
    return f"({row.model})" if row.penalty == "none" else f"({row.model}, penalty {row.penalty})"


def _with_caption(grids: list[Grid], caption: str) -> list[Grid]:
    return [*grids[:-1], replace(grids[-1], caption=caption)] if grids else []


def _title(part: Sequence[ReportRow]) -> str:
    failed = sum(row.errors for row in part)
    title = f"{part[0].dataset}: {_problems(part)} {_subject(part[0])}{_censored(part)}"
    return title + (f"; {failed} samples failed (lil sweep --retry-failed)" if failed else "")


def _grid(part: Sequence[ReportRow], names: Sequence[str], cells: Cells, title: str = "") -> Grid:
    lines = []
    for label, line in series(part).items():
        for row in line:
            there = row.samples - row.missing - row.errors
            shown = cells(row) if row.is_complete else incomplete(there, row.samples, len(names))
            lines.append(Line((label,), (number(row.budget), *shown)))
    return Grid(title, ("backend", "budget", *names), tuple(lines))


def _main_cells(row: ReportRow) -> list[TableCell]:
    solved, cut = share(row.accuracy), whole_percent(row.capped / row.samples)
    if row.is_baseline:
        return [solved, _EMPTY, _EMPTY, _EMPTY, cut]
    moved = change(row.accuracy_change, _claims(row, "loses", "gains"))
    differ = _EMPTY if row.length_ratio.estimate is None else number(row.length_ratio.differs)
    return [solved, moved, _length(row), differ, cut]


def _own_cells(row: ReportRow) -> list[TableCell]:
    none = row.accuracy.estimate == 0
    keys = TableCell("none solved") if none else large(row.keys_read_per_solved)
    return [share(row.accuracy), ratio(row.mean_tokens, form=",.0f"), keys, TableCell("")]


def _compared_cells(other: str, row: ReportRow) -> list[TableCell]:
    """What a row changes of another, and in words what may be claimed of answers and keys."""
    answers, keys = row.accuracy_change, row.keys_read_per_solved_ratio
    order = ("gains", "loses", "fewer keys", "more keys")
    gains, loses, fewer, more = (claim in row.claims for claim in order)
    cases = {
        "chance alone": row.role == "null",
        "not comparable": answers.estimate is None,
        "gains, but more keys": gains and more,
        "fewer keys, but loses": loses and fewer,
        f"better than {other}": gains,
        f"worse than {other}": loses,
        "fewer keys" if fewer else "more keys": fewer or more,
        "the same": keys.estimate == 1 and not differing(answers),
        "too few problems": keys.low is None and differing(answers) < LEAST,
    }
    verdict = TableCell(next((words for words, case in cases.items() if case), "cannot be told"))
    return [change(answers, gains or loses), _length(row), ratio(keys, fewer or more), verdict]


def _cap_cells(at: int) -> Cells:
    def cells(row: ReportRow) -> list[TableCell]:
        cap = row.caps[at]
        solved, cut = share(cap.accuracy), whole_percent(cap.capped / row.samples)
        if row.is_baseline:
            return [solved, _EMPTY, cut, _EMPTY, _EMPTY]
        return [solved, _length(cap), cut, *_both(cap)]

    return cells


def _cost_cells(row: ReportRow) -> list[TableCell]:
    both, n = _both(row)
    keys = ratio(row.keys_read_per_solved_ratio, _claims(row, "fewer keys", "more keys"))
    if row.is_baseline:
        both, keys = _EMPTY, large(row.keys_read_per_solved)
    if row.accuracy.estimate == 0:
        keys = TableCell("none solved")  # so that there is no cost
    packed = number(row.compression_ratio.estimate, ".2f")
    return [both, n, keys, packed, whole_percent(row.repetition_rate)]


def _cells_of(name: str, keys: Iterable[int]) -> Cells:
    """The shares that a field of a row has by number."""
    return lambda row: [share(getattr(row, name).get(key, NOTHING)) for key in keys]


def _length(row: ReportRow | AtCap) -> TableCell:
    return ratio(row.length_ratio, _claims(row, "longer", "shorter"))


def _both(row: ReportRow | AtCap) -> tuple[TableCell, TableCell]:
    """The length where both solve, and of how many samples."""
    if row.length_ratio_solved.estimate is None:
        return _EMPTY, _EMPTY
    length = ratio(row.length_ratio_solved, _claims(row, "longer solved", "shorter solved"))
    return length, number(row.solved_by_both)


def _claims(row: ReportRow | AtCap, *claims: str) -> bool:
    return not set(claims).isdisjoint(row.claims)


def _problems(part: Sequence[ReportRow]) -> str:
    """How many problems, and samples of each where they are several."""
    problems, samples = max(row.problems for row in part), max(row.samples for row in part)
    return counted(problems, "problem") + (
        f" x {samples // problems} samples" if samples > problems else ""
    )


def _censored(part: Sequence[ReportRow]) -> str:
    """How many pairs no ratio has, because full attention was cut; nothing where there are none."""
    counts = {row.pairs_censored for row in part if row.pairs and not row.is_baseline}
    # Full attention alone tells how many there will be.
    counts = counts or {row.pairs_censored for row in part}
    if not any(counts):
        return ""
    text = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"; {text} of full attention's cut at its cap: in no ratio"
