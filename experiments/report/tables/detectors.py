"""What detectors and penalties change against the same runs without them, and the board."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from experiments.report.board import Board, BoardRow, subject
from experiments.report.names import capital, detector_name, series
from experiments.report.report import DetectorPool
from experiments.report.row import ReportRow, by_penalty, dataset_order
from experiments.report.statistics import Interval
from experiments.report.tables.grid import (
    Grid,
    Line,
    TableCell,
    incomplete,
    number,
    percent,
    points,
    ratio,
    share,
    tested,
)

_DETECTOR_CAPTION = (
    "saved: % of all tokens paid, and of those where the answer is right and where it is wrong "
    "without the detector; accuracy: change in points, *: exact McNemar p < 0.05"
)
_PENALTY_CAPTION = (
    "length: times that without it, brackets: 95% intervals, bold: clearly another length; "
    "accuracy: change in points, *: exact McNemar p < 0.05; loops: change of the % of outputs with "
    "a block repeated 20 times"
)
_POOL_CAPTION = (
    "saved: % of tokens; loops and tails: % saved of what unsolved texts cut by the cap spent in a "
    "loop at their end, and in a tail nearly all seen before; net: answers gained less lost, in "
    "points of all; brackets: 95% intervals, problems resampled, bold where they leave out 0; "
    "cells: configurations that clearly lose answers; full: how many of full attention's texts "
    "that end by themselves are stopped, with the 95% upper bound of that rate in %"
)


def detector_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """One table per model, penalty and detector: Tables 1 to 3 of the Lil paper."""
    columns = ("saved", "right", "wrong", "accuracy\u00a0", "lost", "gained")
    grids = []
    for model, of_model in _by_model(rows):
        detectors = sorted({r.detector_action for r in of_model if r.detector != "none"})
        for penalty, of_penalty in by_penalty(of_model).items():
            for pair in detectors:
                if part := [row for row in of_penalty if row.detector_action == pair]:
                    name = detector_name(*pair, detectors)
                    title = f"What {name} saves ({_subject(model, penalty)})"
                    grids.append(_grid(title, columns, part, _detector_cells, _DETECTOR_CAPTION))
    return grids


def penalty_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """One table per model and penalty, no detector: every backend and budget that has both."""
    columns = ("length", "accuracy\u00a0", "lost", "gained", "loops")
    return [
        _grid(
            f"What {penalty} changes ({model})",
            columns,
            [row for row in of_penalty if row.detector == "none"],
            _penalty_cells,
            _PENALTY_CAPTION,
        )
        for model, of_model in _by_model(rows)
        for penalty, of_penalty in by_penalty(of_model).items()
        if penalty != "none"
    ]


def pool_grids(pools: Sequence[DetectorPool]) -> list[Grid]:
    """What each detector does over all sparse configurations, one table per model and penalty."""
    columns = ("detector", "saved", "loops", "tails", "lost", "gained", "net", "cells", "full")
    groups: dict[tuple[str, str], list[DetectorPool]] = defaultdict(list)
    for pool in pools:
        groups[pool.model, pool.penalty].append(pool)
    grids = []
    for key, part in groups.items():
        pairs = [(pool.detector, pool.action) for pool in part]
        names = [detector_name(*pair, pairs) for pair in pairs]
        lines = [Line((name,), _pool_cells(p)) for name, p in zip(names, part, strict=True)]
        title = f"Detectors over all sparse configurations ({_subject(*key)})"
        grids.append(Grid(title, columns, tuple(lines), _POOL_CAPTION))
    return grids


def _by_model(rows: Sequence[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    names = sorted({row.model for row in rows})
    return [(name, [row for row in rows if row.model == name]) for name in names]


def _subject(model: str, penalty: str) -> str:
    return model if penalty == "none" else f"{model}, penalty {penalty}"


def _grid(
    title: str,
    columns: Sequence[str],
    rows: Sequence[ReportRow],
    cells: Callable[[ReportRow], Sequence[TableCell]],
    caption: str,
) -> Grid:
    datasets = sorted({row.dataset for row in rows}, key=dataset_order)
    lines = tuple(
        Line((dataset, label), (number(row.budget), *cells(row)))
        for dataset in datasets
        for label, line in series([row for row in rows if row.dataset == dataset]).items()
        for row in line
    )
    return Grid(capital(title), ("data set", "backend", "budget", *columns), lines, caption)


def _detector_cells(row: ReportRow) -> list[TableCell]:
    effect = row.detector_effect
    assert effect is not None, "every row with a detector has its effect"
    saved = (effect.tokens.estimate, effect.correct, effect.incorrect)
    cells = [number(None if value is None else 100 * value, ".1f") for value in saved]
    return [*cells, *tested(effect.change)]


def _penalty_cells(row: ReportRow) -> list[TableCell]:
    effect = row.penalty_effect
    assert effect is not None, "every row with a penalty has its effect"
    length = ratio(effect.length_ratio, bool(row.claims))
    return [length, *tested(effect.change), TableCell(points(effect.loops))]


def _pool_cells(pool: DetectorPool) -> tuple[TableCell, ...]:
    if pool.missing:
        return tuple(incomplete(0, pool.missing, 8))
    change = pool.effect.change
    answers = [TableCell()] * 4  # dashes where none was judged
    if pool.cells:
        losing = TableCell(str(len(pool.losing)), bold=bool(pool.losing))
        answers = [number(change.lost), number(change.gained), _net(change), losing]
    full = TableCell(f"{pool.full.stopped} of {pool.full.traces}", f"[{percent(pool.full.high)}]")
    return share(pool.effect.tokens), share(pool.loops), share(pool.tails), *answers, full


def _net(net: Interval) -> TableCell:
    if net.estimate is None or net.low is None or net.high is None:
        return TableCell(points(net.estimate))
    interval = f"[{100 * net.low:+.1f}, {100 * net.high:+.1f}]"
    return TableCell(points(net.estimate), interval, bold=net.low > 0 or net.high < 0)


#: What the columns of a board mean.
BOARD_NOTE = (
    "bound: right answers lost, with 95% confidence, by so many problems of the half that chose; "
    "then the other half: tokens, keys, loops, tails spared, in %; answers lost of so many right, "
    "gained of so many wrong; net: in points of all; asked: tokens and keys of questions to the "
    "model, in % of all, taken off; first right answer: right texts alone, ended in hindsight "
    "where a trial answer is first theirs; brackets: 95% intervals, problems resampled"
)


def board_grids(board: Board) -> list[Grid]:
    """A table for each group, without the columns that have no number."""
    columns = tuple("detector bound tokens keys lost gained net loops tails asked".split())
    grids = []
    for group, rows in board.items():
        cells = [_board_cells(row) for row in rows]
        shown = [at for at, of in enumerate(zip(*cells, strict=True)) if {*of} != {TableCell()}]
        lines = tuple(
            Line((row.label,), tuple(of[at] for at in shown))
            for row, of in zip(rows, cells, strict=True)
        )
        reasons = dict.fromkeys(row.reason for row in rows if row.reason)
        who = {why: ", ".join(row.detector for row in rows if row.reason == why) for why in reasons}
        caption = "; ".join(f"{names}: {why}" for why, names in who.items())
        names = (columns[0], *(columns[1 + at] for at in shown))
        grids.append(
            Grid(f"Stopping at the same loss ({subject(group, board)})", names, lines, caption)
        )
    return grids


def _board_cells(row: BoardRow) -> tuple[TableCell, ...]:
    if row.effect is None:
        return (TableCell("no setting"), *[TableCell()] * 8)
    bound = TableCell(f"{100 * row.high:.2g}%", f"of {row.problems}")
    change, solved = row.effect.change, row.effect.solved
    asked = TableCell(f"{percent(row.asked_tokens)}, {percent(row.asked_keys)}")
    return (
        TableCell() if row.problems is None else bound,
        *(share(row.effect.tokens), share(row.keys)),
        TableCell(f"{change.lost}", f"of {solved}"),
        TableCell(f"{change.gained}", f"of {row.judged - solved}"),
        *(_net(change), share(row.loops), share(row.tails)),
        asked if row.asked_tokens or row.asked_keys else TableCell(),
    )
