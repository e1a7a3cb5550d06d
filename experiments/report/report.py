"""A report: the rows of a study, what was pooled of them, and what a reader should know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.report.headline import headline
from experiments.report.measures import summarise, summarise_pooled
from experiments.report.pools import DetectorPool, detector_pools
from experiments.report.row import ReportRow
from experiments.store.samples.sample import Sample
from experiments.store.study import Study


@dataclass(frozen=True)
class Report:
    """What the writers of tables, figures, pages and exports take.

    Attributes:
        samples: every run as decoded and under each detector, without texts.
        pooled: a row for each configuration over all data sets of a model, where there are several.
        pools: what each detector does over all sparse configurations together.
        missing: runs that the store cannot serve.
        notices: what a reader should know, a sentence each.
    """

    study: Study
    samples: Sequence[Sample]
    rows: Sequence[ReportRow]
    pooled: Sequence[ReportRow]
    pools: Sequence[DetectorPool]
    missing: int
    headline: str
    notices: Sequence[str]
    seed: int = 0


def make_report(study: Study, samples: Sequence[Sample]) -> Report:
    """Sum up the samples of a study, see `Study.samples`."""
    seed, factor = study.config.seed, study.config.cap_factor
    rows = summarise(samples, seed, factor)
    return Report(
        study=study,
        samples=samples,
        rows=rows,
        pooled=summarise_pooled(samples, seed, factor),
        pools=detector_pools(samples, seed),
        missing=len({sample.run for sample in samples if sample.status == "missing"}),
        headline=headline(rows),
        notices=[*dict.fromkeys([*_warned(study), *study.warnings, *_at_positions(samples)])],
        seed=seed,
    )


def _warned(study: Study) -> list[str]:
    """What its sweeps were warned of, as their manifests say it."""
    warned = [study.manifest, *(sweep.values for sweep in study.sweeps)]
    return [str(notice) for values in warned for notice in values.get("notices", ())]


def _at_positions(samples: Sequence[Sample]) -> list[str]:
    """Where outputs end because the model's positions do."""
    counts: dict[str, int] = {}
    for sample in samples:
        if sample.at_positions and sample.detector == "none":
            budget = "" if sample.budget is None else f" {sample.budget}"
            name = f"{sample.backend}{budget} on {Path(sample.dataset).stem}"
            counts[name] = counts.get(name, 0) + 1
    return [
        f"{count} outputs of {name} were cut where the model's positions end, or go beyond them"
        for name, count in counts.items()
    ]
