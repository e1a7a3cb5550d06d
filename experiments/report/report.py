"""A report: the rows of a study, what was pooled of them, and what a reader should know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.grid.config import Config
from experiments.report.measures import summarise, summarise_pooled
from experiments.report.pools import DetectorPool, detector_pools
from experiments.report.row import ReportRow
from experiments.store.samples.sample import Sample


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

    config: Config
    samples: Sequence[Sample]
    rows: Sequence[ReportRow]
    pooled: Sequence[ReportRow]
    pools: Sequence[DetectorPool]
    missing: int
    headline: str
    notices: Sequence[str]


def make_report(samples: Sequence[Sample], config: Config, notices: Iterable[str] = ()) -> Report:
    """Sum up the samples of a configuration, see `Study.samples`."""
    seed, factor = config.seed, config.cap_factor
    rows = summarise(samples, seed, factor)
    return Report(
        config,
        samples,
        rows,
        pooled=summarise_pooled(samples, seed, factor),
        pools=detector_pools(samples, seed),
        missing=len({sample.run for sample in samples if sample.status == "missing"}),
        headline=_headline(rows),
        notices=[*dict.fromkeys([*notices, *_at_positions(samples)])],
    )


def _headline(rows: Sequence[ReportRow]) -> str:
    """Each claim that holds of sparse methods alone, and of how many of their configurations."""
    plain = [row for row in rows if row.is_sparse and row.role == "method"]
    plain = [row for row in plain if row.penalty == row.detector == "none"]
    claims = Counter(claim for row in plain for claim in row.claims)
    clear = ", ".join(f"{claim} in {count}" for claim, count in claims.items()) or "none"
    return f"clear differences in {len(plain)} sparse configurations: {clear}" if plain else ""


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
