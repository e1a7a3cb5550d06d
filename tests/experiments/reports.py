"""A report of samples that were made up, or of the small store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.grid.config import Config
from experiments.report.headline import headline
from experiments.report.measures import summarise, summarise_pooled
from experiments.report.pools import detector_pools
from experiments.report.report import Report, make_report
from experiments.store.samples.sample import Sample
from experiments.store.study import Study

SMALL = Path(__file__).parent / "data" / "small"


def report_of(samples: Sequence[Sample]) -> Report:
    """Their report; its study has nothing but a configuration."""
    rows = summarise(samples, 0)
    study: Any = SimpleNamespace(config=Config())
    pooled = summarise_pooled(samples, 0)
    pools = detector_pools(samples, 0)
    return Report(study, samples, rows, pooled, pools, 0, headline(rows), [])


def small_report() -> Report:
    """The report of the small store."""
    study = Study.open(SMALL)
    return make_report(study, study.samples(study.detectors))
