"""Figures of samples, drawn at once: what the tests of pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.report.chart_sets import chart_sets
from experiments.report.charts import ChartSet
from experiments.report.figures import Conditions, drawing
from experiments.report.measures import rows
from experiments.report.pooled import detector_pools
from experiments.store.samples.sample import Sample

PLAIN = Conditions()


def drawn_figures(
    samples: Sequence[Sample], folder: Path, conditions: Conditions = PLAIN
) -> list[Path]:
    """The files of all figures of these samples."""
    found = rows(samples, seed=0)
    return drawing(samples, found, every_chart(samples), folder, conditions)()


def every_chart(samples: Sequence[Sample]) -> list[ChartSet]:
    """Their charts, those of detectors among them."""
    return chart_sets(rows(samples, seed=0), samples, detector_pools(samples, 0))
