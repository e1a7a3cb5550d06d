"""Tables for readers: answers and lengths, costs, several samples, detectors, penalties."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.report.names import short_named, short_names
from experiments.report.tables.backends import caps_grids, cost_grids, main_grids, sampling_grids
from experiments.report.tables.detectors import detector_grids, penalty_grids, pool_grids
from experiments.report.tables.grid import Grid, rich_table

if TYPE_CHECKING:
    from experiments.report.report import Report

__all__ = ["Grid", "every_grid", "pool_grids", "rich_table"]


def every_grid(report: Report) -> list[Grid]:
    """All tables of a report in reading order, in no markup yet."""
    rows, pooled = short_named(report.rows), short_named(report.pooled)
    models = short_names(row.model for row in report.rows)
    return [
        *main_grids([*rows, *pooled]),
        *cost_grids([*rows, *pooled]),
        *caps_grids(rows),
        *sampling_grids(rows),
        *detector_grids(rows),
        *penalty_grids(rows),
        *pool_grids([replace(pool, model=models[pool.model]) for pool in report.pools]),
    ]
