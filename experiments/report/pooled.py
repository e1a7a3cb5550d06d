"""What detectors do over many pairs together: a sample under one beside the same trace left alone.

Whoever pools does it here: charts and the table of detectors from pairs, with intervals; sentences
and the table of a replay from rows that have summed them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.report.aggregate import Pairs, by_problem, paid_of
from experiments.report.bootstrap import Bootstrap
from experiments.report.calibration import Clean, FalseStops, false_stops
from experiments.report.row import ReportRow
from experiments.report.statistics import LEVEL, Interval, change_p, effective, holm, wilson
from experiments.store.samples.sample import Key, Sample, is_usable


@dataclass(frozen=True)
class RowTotals:
    """Sums over rows of one detector: of tokens over all its pairs, of answers over scored ones.

    Attributes:
        stopped: samples that it ended.
        tokens, without: paid with it and without.
        solved: samples solved under it.
        stood, apart: solved without it, and those of them that are not full attention's text.
        lost, gained: of those, and of the others.
        is_judged: any answer was.
    """

    stopped: int
    tokens: int
    without: int
    solved: int
    stood: int
    apart: int
    lost: int
    gained: int
    is_judged: bool

    @property
    def saved(self) -> float | None:
        """The share of tokens paid that it saves; None where there was nothing to save."""
        return 1 - self.tokens / self.without if self.without else None


def row_totals(rows: Iterable[ReportRow]) -> RowTotals:
    """What a detector does over the configurations of these rows together."""
    rows = list(rows)
    changes = [row.detector_accuracy_change for row in rows]
    return RowTotals(
        stopped=sum(row.stopped for row in rows),
        tokens=sum(row.detector_tokens or 0 for row in rows),
        without=sum(row.detector_tokens_without or 0 for row in rows),
        solved=sum(round((row.accuracy.estimate or 0) * row.n) for row in rows),
        stood=sum(row.detector_solved or 0 for row in rows),
        apart=sum(row.detector_solved_differing or 0 for row in rows),
        lost=sum(change.lost or 0 for change in changes),
        gained=sum(change.gained or 0 for change in changes),
        is_judged=any(change.lost is not None for change in changes),
    )


@dataclass(frozen=True)
class DetectorEffect:
    """What a detector does over pairs; intervals of problems resampled.

    Attributes:
        tokens: share of the tokens paid that it saves, over the pairs whose tokens are known.
        net: answers gained less lost, over the pairs that were scored.
        solved: scored samples solved without it.
        lost, gained: of these, and of the others.
    """

    tokens: Interval
    net: Interval
    solved: int
    lost: int
    gained: int


def effect(pairs: Pairs, bootstrap: Bootstrap) -> DetectorEffect:
    """What the first of each pair changes of the second."""
    known = [(m, t) for m, t in pairs if m.tokens is not None and t.tokens is not None]
    scored = scored_pairs(pairs)
    moves = _moves(scored)
    paid = by_problem((_problem(m), paid_of(t) - paid_of(m), paid_of(t)) for m, t in known)
    return DetectorEffect(
        tokens=bootstrap.ratio(paid),
        net=bootstrap.ratio(by_problem(moves)),
        solved=sum(bool(t.correct) for _, t in scored),
        lost=sum(change < 0 for _, change, _ in moves),
        gained=sum(change > 0 for _, change, _ in moves),
    )


def scored_pairs(pairs: Pairs) -> Pairs:
    """Those of which both answers were judged."""
    return [(m, t) for m, t in pairs if m.correct is not None and t.correct is not None]


def paired(samples: Iterable[Sample]) -> dict[tuple[Key, tuple[str, str]], Pairs]:
    """Every detector's samples beside the same traces left alone.

    By configuration, and detector and action.
    """
    every = list(samples)
    alone = {one.run: one for one in every if one.detector == "none"}
    found: dict[tuple[Key, tuple[str, str]], Pairs] = defaultdict(list)
    for one in every:
        if one.detector != "none" and (plain := alone.get(one.run)) is not None:
            found[one.key, (one.detector, one.action)].append((one, plain))
    return found


@dataclass(frozen=True)
class DatasetLosses:
    """What a detector and its action do to the traces of one data set that can be lost.

    Attributes:
        dataset: which.
        solved: sparse traces that are solved and are not full attention's text.
        lost: of these.
        gained: of traces that are not solved.
        lost_share: of those solved; Wilson's interval for as many as are independent.
    """

    dataset: str
    solved: int
    lost: int
    gained: int
    lost_share: Interval


@dataclass(frozen=True)
class DetectorPool:
    """A detector and its action against the same traces of sparse methods left alone.

    Where a sparse method writes what full attention writes there is nothing that its detector could
    be blamed for, and any share of all traces gets small by adding such: so answers are counted
    over the traces that differ, too.

    Intervals are of problems resampled: samples of a problem, under whatever configuration, say
    less together than as many of different ones. Shares are fractions.

    Attributes:
        model, penalty, detector, action: which.
        samples, problems: sparse traces of all data sets, and of how many problems.
        missing: runs, full attention's among them, that failed or are not there, with the detector
            or without. The longest are missing, so where there are any there are no measures.
        fired: of the samples.
        tokens: share of the tokens paid that it saves.
        loops, tails: share of the wasted tokens that it spares; see `wasted`.
        wasted_loops, wasted_tails: how many there are.
        solved: samples solved without it.
        lost, gained: of these, and of the others.
        net: gained less lost, over all samples that were scored.
        differing: scored samples whose text is not full attention's of the same problem.
        net_differing: gained less lost, over those.
        levels: these by data set, the solved ones.
        cells: configurations, of data set, method and budget, with scored samples.
        losing: those of them where more is lost than gained, and that stays at 95% after Holm's
            correction for all of them.
        full: what it does to traces of full attention that ended by themselves.
    """

    model: str
    penalty: str
    detector: str
    action: str
    samples: int
    problems: int
    missing: int
    fired: int
    tokens: Interval
    loops: Interval
    tails: Interval
    wasted_loops: int
    wasted_tails: int
    solved: int
    lost: int
    gained: int
    net: Interval
    differing: int
    net_differing: Interval
    levels: tuple[DatasetLosses, ...]
    cells: int
    losing: tuple[str, ...]
    full: FalseStops


def detector_pools(samples: Sequence[Sample], seed: int) -> list[DetectorPool]:
    """One for each model, penalty, detector and action, in the order of the samples.

    Args:
        samples: of a study.
        seed: of the bootstrap.
    """
    alone = {one.run: one for one in samples if one.detector == "none"}
    full = {(one.penalty, one.pair): one for one in alone.values() if one.backend == "full"}
    groups: dict[tuple[str, str, str, str], Pairs] = defaultdict(list)
    for one in samples:
        if one.detector != "none":
            pair = one, alone[one.run]
            groups[one.model, one.penalty, one.detector, one.action].append(pair)
    bootstrap = Bootstrap(seed)
    return [
        _pool(key, pairs, full, bootstrap)
        for key, pairs in groups.items()
        if any(_is_sparse(plain) for _, plain in pairs)
    ]


def _is_sparse(sample: Sample) -> bool:
    return sample.budget is not None and sample.role == "method"


def _pool(
    key: tuple[str, str, str, str],
    pairs: Pairs,
    full: Mapping[tuple[str, tuple[str, str, str, int]], Sample],
    bootstrap: Bootstrap,
) -> DetectorPool:
    missing = sum(not (is_usable(one) and is_usable(plain)) for one, plain in pairs)
    planned = [pair for pair in pairs if _is_sparse(pair[1])]
    pairs = [] if missing else pairs
    sparse = [(one, plain) for one, plain in pairs if _is_sparse(plain)]
    scored, of_all = scored_pairs(sparse), effect(sparse, bootstrap)

    def differs(plain: Sample) -> bool:
        other = full.get((plain.penalty, plain.pair))
        return other is None or other.output != plain.output

    apart = [(m, t) for m, t in scored if differs(t)]
    cells: dict[Key, list[tuple[str, int]]] = defaultdict(list)
    for (m, _), (problem, change, _) in zip(scored, _moves(scored), strict=True):
        cells[m.key].append((problem, change))

    def spared(name: str) -> tuple[Interval, int]:
        known = [
            (_problem(m), before - left, before)
            for m, t in sparse
            if (left := getattr(m, name)) is not None and (before := getattr(t, name)) is not None
        ]
        return bootstrap.ratio(by_problem(known)), sum(before for *_, before in known)

    loops, wasted_loops = spared("wasted_loop")
    tails, wasted_tails = spared("wasted_tail")
    return DetectorPool(
        *key,
        samples=len(planned),
        problems=len({_problem(m) for m, _ in planned}),
        missing=missing,
        fired=sum(m.stopped_at is not None for m, _ in sparse),
        tokens=of_all.tokens,
        loops=loops,
        tails=tails,
        wasted_loops=wasted_loops,
        wasted_tails=wasted_tails,
        solved=of_all.solved,
        lost=of_all.lost,
        gained=of_all.gained,
        net=of_all.net,
        differing=len(apart),
        net_differing=bootstrap.ratio(by_problem(_moves(apart))),
        levels=_levels(apart),
        cells=len(cells),
        losing=_losing(cells, bootstrap.seed),
        full=false_stops(_clean(pairs), 0),
    )


def _moves(pairs: Pairs) -> list[tuple[str, int, int]]:
    """Of each pair its problem, the answer gained or lost, and one."""
    return [(_problem(m), int(bool(m.correct)) - int(bool(t.correct)), 1) for m, t in pairs]


def _levels(apart: Pairs) -> tuple[DatasetLosses, ...]:
    """By data set, in the order of the samples."""
    found = []
    for dataset in dict.fromkeys(plain.dataset for _, plain in apart):
        here = [pair for pair in apart if pair[1].dataset == dataset]
        solved = [(m, t) for m, t in here if t.correct]
        lost = [float(not m.correct) for m, _ in solved]
        n = effective(lost, [_problem(t) for _, t in solved]) if solved else 0.0
        share = math.fsum(lost) / len(lost) if lost else 0.0
        gained = sum(bool(m.correct) and not t.correct for m, t in here)
        low = wilson(share * n, n)
        found.append(DatasetLosses(dataset, len(solved), int(sum(lost)), gained, low))
    return tuple(found)


def _losing(cells: Mapping[Key, Sequence[tuple[str, int]]], seed: int) -> tuple[str, ...]:
    after = holm([change_p(moved, seed) for moved in cells.values()])
    net = [sum(change for _, change in moved) for moved in cells.values()]
    return tuple(
        f"{backend} {budget} on {dataset}"
        for (_, dataset, _, backend, budget, _), p, change in zip(cells, after, net, strict=True)
        if change < 0 and p <= 1 - LEVEL
    )


def _problem(sample: Sample) -> str:
    return f"{sample.dataset}/{sample.item_id}"


def _clean(pairs: Pairs) -> list[Clean]:
    """Full attention's traces that ended, by problem."""
    found: dict[str, list[bool]] = defaultdict(list)
    for one, plain in pairs:
        if plain.backend == "full" and plain.status == "ok":
            found[_problem(plain)].append(one.stopped_at is not None)
    return [Clean(name, len(fired), (sum(fired),)) for name, fired in found.items()]
