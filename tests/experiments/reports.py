"""A report of samples that were made up, or of the small store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.grid.config import Config
from experiments.report.report import Report, make_report
from experiments.store.samples.sample import Sample
from experiments.store.study import Study

SMALL = Path(__file__).parent / "data" / "small"


def report_of(samples: Sequence[Sample]) -> Report:
    """Their report."""
    return make_report(samples, Config())


def small_report() -> Report:
    """The report of the small store."""
    study = Study.open(SMALL)
    return make_report(study.samples(study.detectors), study.config)
