"""What each penalty changes against the same configurations without it."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.report.names import shortly_named
from experiments.report.row import ReportRow, by_penalty, series
from experiments.report.tables.cells import MISSING, TableCell, points, ratio, tested
from experiments.report.tables.grid import Grid, Line
from experiments.report.tables.parts import budget_label, by_dataset, by_model

_CAPTION = (
    "times the length without it, in brackets 95% intervals, bold where they leave out 1; changes "
    "in points; *: exact McNemar p < 0.05; loops: change of outputs with a block repeated 20 times"
)


def penalty_grids(rows: Sequence[ReportRow]) -> list[Grid]:
    """One table per model and penalty, no detector: every backend and budget that has both."""
    return [
        Grid(
            f"What {penalty} changes ({model})",
            (
                "data set",
                "backend",
                "budget",
                "length",
                "accuracy\u00a0",
                "lost",
                "gained",
                "loops",
            ),
            tuple(
                Line((dataset, label), (TableCell(budget_label(row)), *_cells(row)))
                for dataset, part in by_dataset([r for r in of_penalty if r.detector == "none"])
                for label, line in series(part).items()
                for row in line
            ),
            _CAPTION,
        )
        for model, of_model in by_model(shortly_named(rows))
        for penalty, of_penalty in by_penalty(of_model).items()
        if penalty != "none"
    ]


def _cells(row: ReportRow) -> list[TableCell]:
    lost, gained = row.penalty_accuracy_change.lost, row.penalty_accuracy_change.gained
    return [
        ratio(row.penalty_length_ratio, bool(row.claims)),
        tested(row.penalty_accuracy_change),
        TableCell(MISSING if lost is None else str(lost)),
        TableCell(MISSING if gained is None else str(gained)),
        TableCell(points(row.penalty_repetition_change)),
    ]
