"""What detectors save and lose: the paper's Tables 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.report.names import capital, detector_name, shortly_named
from experiments.report.row import ReportRow, by_penalty, pairs, series
from experiments.report.tables.cells import MISSING, TableCell, points, saved
from experiments.report.tables.grid import WIDTH, Grid, Line, in_parts
from experiments.report.tables.parts import by_dataset, by_model, under

Pair = tuple[str, str]

_DATASET, _BUDGET = 12, 6  # columns of a terminal that labels take at most


def table1_grids(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Grid]:
    """Token savings and accuracy change of a detector, per cent and points: the paper's Table 1.

    Full attention, the paper's Table 2, is the first line of each data set. One table per model and
    detector; unlike the paper's, budgets and data sets go down, so that it fits a terminal of
    `width` columns; backends for which there is no room are in a table of their own.
    """
    return _grids(
        shortly_named(rows),
        "Table 1: tokens saved by {}, % / change of accuracy, points",
        lambda row: (
            saved(row.token_savings.estimate),
            points(row.detector_accuracy_change.estimate),
        ),
        width,
    )


def table3_grids(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Grid]:
    """Token savings over samples correct / incorrect without the detector: the paper's Table 3.

    Of the detectors that change some length alone.
    """
    changing = {row.watched for row in rows if row.token_savings.estimate}
    return _grids(
        [row for row in shortly_named(rows) if row.watched in changing],
        "Table 3: tokens saved by {}, %, where correct / incorrect without it",
        lambda row: (saved(row.token_savings_correct), saved(row.token_savings_incorrect)),
        width,
    )


def _grids(
    rows: Sequence[ReportRow], title: str, cell: Callable[[ReportRow], Pair], width: int
) -> list[Grid]:
    found = []
    for model, of_model in by_model(rows):
        detectors = list(pairs(of_model))
        for penalty, of_penalty in by_penalty(of_model).items():
            for watched in detectors:
                chosen = [row for row in of_penalty if row.watched == watched]
                heading = title.format(capital(detector_name(*watched, detectors)))
                heading += f" ({model}{under(penalty)})"
                found += _of_detector(chosen, heading, cell, width)
    return found


def _of_detector(
    rows: list[ReportRow], title: str, cell: Callable[[ReportRow], Pair], width: int
) -> list[Grid]:
    lines = [(dataset, series(part)) for dataset, part in by_dataset(rows)]
    shown = {
        (dataset, label, row.budget): TableCell(" / ".join(cell(row)))
        for dataset, of_dataset in lines
        for label, line in of_dataset.items()
        for row in line
    }
    labels = list(dict.fromkeys(label for _, label, _ in shown))
    wide = [
        max(
            [
                min(len(label), _DATASET),
                *(len(c.value) for at, c in shown.items() if at[1] == label),
            ]
        )
        for label in labels
    ]
    start = min(_DATASET, max([len("data set"), *(len(name) for name, _ in lines)]))
    room = width - start - _BUDGET - 4  # edges and the blanks between
    found = []
    for part in in_parts(labels, [one + 1 for one in wide], room):
        keys = sorted({(d, b) for d, label, b in shown if label in part}, key=_order(lines))
        found.append(
            Grid(
                title,
                ("data set", "budget", *part),
                tuple(
                    Line(
                        (dataset,),
                        (
                            TableCell(MISSING if budget is None else str(budget)),
                            *(shown.get((dataset, label, budget), TableCell("")) for label in part),
                        ),
                    )
                    for dataset, budget in keys
                ),
            )
        )
    return found


def _order(
    lines: list[tuple[str, dict[str, list[ReportRow]]]],
) -> Callable[[tuple[str, int | None]], tuple[int, int]]:
    names = [name for name, _ in lines]
    return lambda key: (names.index(key[0]), key[1] or 0)
