"""Tables for the terminal: answers and lengths, costs, several samples, the paper's, penalties."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from experiments.report.pooled import DetectorPool
from experiments.report.row import ReportRow
from experiments.report.tables.backends import (
    caps_grids,
    cost_grids,
    main_grids,
    sampling_grids,
)
from experiments.report.tables.cells import MISSING
from experiments.report.tables.detectors import table1_grids, table3_grids
from experiments.report.tables.grid import WIDTH, Grid, html_table, rich_table
from experiments.report.tables.penalties import penalty_grids
from experiments.report.tables.stopping import stopping_grids

__all__ = [
    "MISSING",
    "Grid",
    "caps_tables",
    "cost_tables",
    "every_grid",
    "html_table",
    "main_tables",
    "penalty_tables",
    "rich_table",
    "sampling_tables",
    "stopping_tables",
    "table1",
    "table3",
]


def every_grid(
    rows: Sequence[ReportRow],
    together: Sequence[ReportRow],
    pools: Sequence[DetectorPool],
    width: int = WIDTH,
) -> list[Grid]:
    """All tables of a report in reading order, in no markup yet.

    Args:
        rows: of a study.
        together: the same over all data sets of a model.
        pools: what detectors do over all sparse configurations.
        width: columns there are.
    """
    return [
        *main_grids([*rows, *together]),
        *cost_grids([*rows, *together]),
        *caps_grids(rows),
        *sampling_grids(rows),
        *table1_grids(rows, width),
        *table3_grids(rows, width),
        *penalty_grids(rows),
        *stopping_grids(pools),
    ]


def main_tables(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Table]:
    """One table per model, penalty and data set: every backend and budget beside full attention."""
    return [rich_table(grid, width) for grid in main_grids(rows)]


def cost_tables(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Table]:
    """One table per model, penalty and data set: what a solved problem costs, and how texts end."""
    return [rich_table(grid, width) for grid in cost_grids(rows)]


def caps_tables(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Table]:
    """One table per model, penalty, data set and smaller cap that the same texts are read at."""
    return [rich_table(grid, width) for grid in caps_grids(rows)]


def sampling_tables(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Table]:
    """pass@k where problems have several samples."""
    return [rich_table(grid, width) for grid in sampling_grids(rows)]


def table1(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Table]:
    """What each detector saves and changes: the paper's Table 1, full attention's Table 2 in it."""
    return [rich_table(grid, width) for grid in table1_grids(rows, width)]


def table3(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Table]:
    """What each detector saves where the answer was correct and where not: the paper's Table 3."""
    return [rich_table(grid, width) for grid in table3_grids(rows, width)]


def penalty_tables(rows: Sequence[ReportRow], width: int = WIDTH) -> list[Table]:
    """What each penalty changes against the same backend and budget without it, no detector."""
    return [rich_table(grid, width) for grid in penalty_grids(rows)]


def stopping_tables(found: Sequence[DetectorPool], width: int = WIDTH) -> list[Table]:
    """What each detector does over all sparse configurations of a model together."""
    return [rich_table(grid, width) for grid in stopping_grids(found)]
