"""Tables for readers: answers and lengths, costs, several samples, detectors, penalties."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.report.names import short_named, short_names
from experiments.report.tables import backends
from experiments.report.tables.detectors import detector_grids, penalty_grids, pool_grids
from experiments.report.tables.grid import Grid, rich_table

if TYPE_CHECKING:
    from experiments.report.report import Report

__all__ = ["Grid", "every_grid", "pool_grids", "rich_table"]


def every_grid(report: Report) -> list[Grid]:
    """All tables of a report in reading order, in no markup yet."""
    rows, pooled = short_named(report.rows), short_named(report.pooled)
    if report.against_random is not None:
        return [backends.comparison_grid(rows, short_named(report.against_random))]
    models = short_names(row.model for row in report.rows)
    return [
        *backends.main_grids([*rows, *pooled]),
        *backends.cost_grids([*rows, *pooled]),
        *backends.caps_grids(rows),
        *backends.depth_grids(rows),
        *backends.sampling_grids(rows),
        *detector_grids(rows),
        *penalty_grids(rows),
        *pool_grids([replace(pool, model=models[pool.model]) for pool in report.pools]),
    ]
