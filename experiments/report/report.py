"""A report: the rows of a study, what was pooled of them, and what a reader should know."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.grid.config import Config
from experiments.report.calibration import Clean, FalseStops, false_stops
from experiments.report.measures import summarise, summarise_pooled
from experiments.report.pairs import Pairs, detector_effect, judged, moves, problem_of, spared
from experiments.report.row import DetectorEffect, ReportRow
from experiments.report.statistics import LEVEL, Bootstrap, Interval, change_p, corrected
from experiments.store.samples.sample import Key, Sample, is_usable


@dataclass(frozen=True)
class DetectorPool:
    """A detector and its action over all sparse methods; intervals resample problems.

    Attributes:
        missing: runs that failed or are not there; where there are any there are no measures.
        loops, tails: share of the wasted tokens that it spares; see `Sample`.
        cells: configurations, of data set, method and budget, with scored samples.
        losing: those of them that lose answers, at 95% after Holm's correction.
        full: what it does to traces of full attention that ended by themselves.
    """

    model: str
    penalty: str
    detector: str
    action: str
    samples: int
    problems: int
    missing: int
    effect: DetectorEffect
    loops: Interval
    tails: Interval
    cells: int
    losing: tuple[str, ...]
    full: FalseStops


def detector_pools(samples: Sequence[Sample], seed: int) -> list[DetectorPool]:
    """A pool for each model, penalty, detector and action, in the order of the samples."""
    unwatched = {sample.run: sample for sample in samples if sample.detector == "none"}
    groups: dict[tuple[str, str, str, str], Pairs] = defaultdict(list)
    for sample in samples:
        if sample.detector != "none" and (plain := unwatched.get(sample.run)) is not None:
            key = sample.model, sample.penalty, sample.detector, sample.action
            groups[key].append((sample, plain))
    bootstrap = Bootstrap(seed)
    return [
        _pool(key, pairs, bootstrap)
        for key, pairs in groups.items()
        if any(_is_sparse(plain) for _, plain in pairs)
    ]


def _is_sparse(sample: Sample) -> bool:
    return sample.budget is not None and sample.role == "method"


def _pool(key: tuple[str, str, str, str], pairs: Pairs, bootstrap: Bootstrap) -> DetectorPool:
    missing = sum(not (is_usable(left) and is_usable(right)) for left, right in pairs)
    planned = [pair for pair in pairs if _is_sparse(pair[1])]
    sparse = [] if missing else planned
    cells: dict[Key, Pairs] = defaultdict(list)
    for left, right in judged(sparse):
        cells[left.key].append((left, right))
    return DetectorPool(
        *key,
        samples=len(planned),
        problems=len({problem_of(left) for left, _ in planned}),
        missing=missing,
        effect=detector_effect(sparse, bootstrap, pooled=True),
        loops=spared(sparse, lambda sample: sample.wasted_loop, bootstrap),
        tails=spared(sparse, lambda sample: sample.wasted_tail, bootstrap),
        cells=len(cells),
        losing=_losing(cells, bootstrap.seed),
        full=false_stops(_clean([] if missing else pairs), 0),
    )


def _losing(cells: Mapping[Key, Pairs], seed: int) -> tuple[str, ...]:
    moved = [moves(pairs) for pairs in cells.values()]
    p_values = corrected([change_p(part, seed) for part in moved], "holm")
    return tuple(
        f"{backend} {budget} on {dataset}"
        for (_, dataset, _, backend, budget, _), part, p in zip(cells, moved, p_values, strict=True)
        if sum(change for _, change in part) < 0 and p <= 1 - LEVEL
    )


def _clean(pairs: Pairs) -> list[Clean]:
    """Full attention's traces that ended, by problem."""
    fired: dict[str, list[bool]] = defaultdict(list)
    for left, right in pairs:
        if right.backend == "full" and right.status == "ok":
            fired[problem_of(right)].append(left.stopped_at is not None)
    return [Clean(problem, len(part), (sum(part),)) for problem, part in fired.items()]


@dataclass(frozen=True)
class Report:
    """What the writers of tables, figures, pages and exports take.

    Attributes:
        samples: every run as decoded and under each detector, without texts.
        pooled: a row for each configuration over all data sets of a model, where there are several.
        pools: what each detector does over all sparse configurations together.
        missing: runs that the store cannot serve.
        notices: what a reader should know, a sentence each.
        against_random: of a comparison, which has one table and one figure.
    """

    config: Config
    samples: Sequence[Sample]
    rows: Sequence[ReportRow]
    pooled: Sequence[ReportRow]
    pools: Sequence[DetectorPool]
    missing: int
    headline: str
    notices: Sequence[str]
    against_random: Sequence[ReportRow] | None = None


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
    counts = Counter(
        f"{s.backend}{'' if s.budget is None else f' {s.budget}'} on {Path(s.dataset).stem}"
        for s in samples
        if s.at_positions and s.detector == "none"
    )
    return [
        f"{count} outputs of {name} were cut where the model's positions end, or go beyond them"
        for name, count in counts.items()
    ]
