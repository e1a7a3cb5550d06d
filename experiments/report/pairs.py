"""Sums, means and ratios over samples and pairs; `math.fsum` makes them free of the order."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from experiments.grid.needles import PART, is_named, needles_in_answer
from experiments.report.row import DetectorEffect, PenaltyEffect
from experiments.report.statistics import (
    Bootstrap,
    Change,
    Interval,
    Ratio,
    change_p,
    effective,
    sign_flips,
    swaps,
    tango,
    wilson,
)
from experiments.store.samples.sample import Sample, is_usable

PairKey = tuple[str, str, str, int]
Pairs = list[tuple[Sample, Sample]]


def paired(samples: list[Sample], partners: Mapping[PairKey, Sample]) -> Pairs:
    """Each sample with its partner; none where any lacks one, as the longest outputs fail first."""
    both = ((sample, partners.get(sample.pair)) for sample in samples if is_usable(sample))
    pairs = [(left, right) for left, right in both if right is not None and is_usable(right)]
    return pairs if len(pairs) == len(samples) else []


def uncensored(pairs: Pairs) -> Pairs:
    """Those whose partner ended by itself: of one cut at its cap no length or cost is known."""
    return [pair for pair in pairs if pair[1].status != "capped"]


def with_lengths(pairs: Pairs) -> Pairs:
    """The pairs whose lengths can be divided."""
    return [(left, right) for left, right in pairs if left.tokens and right.tokens]


def judged(pairs: Pairs) -> Pairs:
    """The pairs of which both answers were judged."""
    return [(left, right) for left, right in pairs if None not in (left.correct, right.correct)]


def problem_of(sample: Sample) -> str:
    """What the samples of one problem share."""
    return f"{sample.dataset}/{sample.item_id}"


def sums_by_problem(items: Iterable[tuple[str, *tuple[float, ...]]]) -> list[tuple[float, ...]]:
    """Sums per problem: several samples of one problem are not independent of each other."""
    groups: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for problem, *values in items:
        groups[problem].append(tuple(values))
    return [
        rows[0] if len(rows) == 1 else tuple(map(math.fsum, zip(*rows, strict=True)))
        for rows in groups.values()
    ]


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def accuracy(samples: list[Sample]) -> tuple[int, Interval]:
    """How many are scored, and the share of them that is solved."""
    scored = [sample for sample in samples if sample.correct is not None]
    solved = [float(bool(sample.correct)) for sample in scored]
    n = effective(solved, [sample.item_id for sample in scored]) if scored else 0.0
    return len(scored), wilson(sum(solved) / len(solved) * n if solved else 0, n)


def recall_by_depth(samples: list[Sample]) -> dict[int, Interval]:
    """The share of needles found by the depth, in per cent, at which a part of the text begins."""
    parts: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.correct is not None and is_named(sample.dataset):
            for depth, is_there in needles_in_answer(sample.item_id, sample.gold, sample.answer):
                solved = sample.correct or is_there
                parts[depth // PART * PART].append(replace(sample, correct=solved))
    return {depth: accuracy(part)[1] for depth, part in sorted(parts.items())}


def moves(pairs: Pairs) -> list[tuple[str, int]]:
    """Of each judged pair its problem, and the answer gained (1) or lost (-1) by the first."""
    return [
        (problem_of(left), int(bool(left.correct)) - int(bool(right.correct)))
        for left, right in judged(pairs)
    ]


def accuracy_change(pairs: Pairs, seed: int) -> Change:
    """What the first of each pair changes of the second's accuracy, samples of a problem as one."""
    moved = moves(pairs)
    if not moved:
        return Change()
    changes = [float(change) for _, change in moved]
    lost, gained = changes.count(-1), changes.count(1)
    n = effective(changes, [problem for problem, _ in moved])
    share = n / len(moved)
    change = tango(lost * share, gained * share, n)
    p = change_p(moved, seed)
    return Change(change.estimate, change.low, change.high, p, lost, gained)


def length_ratio(pairs: Pairs, bootstrap: Bootstrap, most: float | None) -> Ratio:
    """exp of the mean over problems of the mean of their clipped logs, and its sign-flip test.

    `most`, the log of the cap's factor, cuts both sides alike, so that equal distributions have
    mean 0; None where the cap is a number of tokens.
    """
    bound = math.inf if most is None else most

    def log(left: Sample, right: Sample) -> float:
        return max(-bound, min(bound, math.log((left.tokens or 0) / (right.tokens or 1))))

    sums = sums_by_problem((left.item_id, log(left, right), 1) for left, right in pairs)
    logs = [total / count for total, count in sums]
    ratio = bootstrap.log_mean(logs, most)
    p = sign_flips(logs, bootstrap.seed) if logs else None
    differs = sum(abs(value) > 1e-12 for value in logs)
    return Ratio(ratio.estimate, ratio.low, ratio.high, p, differs)


def mean_tokens(samples: list[Sample], bootstrap: Bootstrap) -> Interval:
    """Mean length of an output."""
    known = ((s.item_id, s.tokens, 1) for s in samples if s.tokens is not None)
    return bootstrap.skewed_mean(sums_by_problem(known))


def cost_per_solved(samples: list[Sample]) -> float | None:
    """Keys that all scored samples read over how many are solved; None when none is."""
    known = [s for s in samples if None not in (s.correct, s.keys_read)]
    solved = sum(bool(sample.correct) for sample in known)
    return math.fsum(sample.keys_read or 0.0 for sample in known) / solved if solved else None


def cost_ratio(pairs: Pairs, bootstrap: Bootstrap) -> Ratio:
    """Keys per solved problem, first over second; p of swapping the sides of problems."""
    sums = sums_by_problem(
        (a.item_id, a.keys_read, float(bool(a.correct)), b.keys_read, float(bool(b.correct)))
        for a, b in judged(pairs)
        if a.keys_read is not None and b.keys_read is not None
    )
    differing = [row for row in sums if row[:2] != row[2:]]
    ratio = bootstrap.log_ratio(sums, len(differing))
    if not differing:
        return Ratio(ratio.estimate, ratio.low, ratio.high, p=1.0 if sums else None)
    whole = np.asarray([[math.fsum(column)] for column in zip(*sums, strict=True)])
    changed = np.asarray([[math.fsum(column)] for column in zip(*differing, strict=True)])
    same = np.maximum(whole - changed, 0.0)  # of the problems that do not differ

    def log(of: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a, b, c, d = np.log(of + same)
        return np.asarray(a - b - c + d)

    p = swaps(np.asarray(differing), log, bootstrap.seed)
    return Ratio(ratio.estimate, ratio.low, ratio.high, p=p, differs=len(differing))


def spared(pairs: Pairs, count: Callable[[Sample], float | None], bootstrap: Bootstrap) -> Interval:
    """The share of the second side's tokens, or keys, that the first spares, problems resampled."""
    counts = ((problem_of(left), count(left), count(right)) for left, right in pairs)
    known = ((problem, a, b) for problem, a, b in counts if a is not None and b is not None)
    return bootstrap.ratio(sums_by_problem(known)).rest


def detector_effect(pairs: Pairs, bootstrap: Bootstrap, *, pooled: bool = False) -> DetectorEffect:
    """What a detector, first of each pair, changes; `pooled` pairs share problems."""
    known = [(left, right) for left, right in pairs if None not in (left.tokens, right.tokens)]
    change = accuracy_change(known, bootstrap.seed)
    if pooled:
        net = bootstrap.ratio(sums_by_problem((*moved, 1) for moved in moves(known)))
        change = Change(net.estimate, net.low, net.high, None, change.lost, change.gained)
    return DetectorEffect(
        fired=sum(left.stopped_at is not None for left, _ in pairs),
        tokens=spared(known, lambda sample: sample.paid_tokens, bootstrap),
        correct=saved([pair for pair in known if pair[1].correct is True]),
        incorrect=saved([pair for pair in known if pair[1].correct is False]),
        paid=sum(left.paid_tokens or 0 for left, _ in known),
        paid_without=sum(right.paid_tokens or 0 for _, right in known),
        solved=sum(bool(right.correct) for _, right in judged(known)),
        change=change,
    )


def saved(pairs: Pairs, name: str = "paid_tokens") -> float | None:
    """The share of the second sides' total that is gone; None where nothing is known, or was."""
    counts = [(getattr(left, name), getattr(right, name)) for left, right in pairs]
    known = [both for both in counts if None not in both]
    without = sum(right for _, right in known)
    return 1 - sum(left for left, _ in known) / without if without else None


def penalty_effect(pairs: Pairs, bootstrap: Bootstrap, most: float | None) -> PenaltyEffect:
    """What a penalty, in the first of each pair, changes against the second."""
    known = [(a.repeated, b.repeated) for a, b in pairs if None not in (a.repeated, b.repeated)]
    return PenaltyEffect(
        # Both had the same room: a pair that was cut is a comparison under that cap.
        length_ratio(with_lengths(pairs), bootstrap, most),
        accuracy_change(pairs, bootstrap.seed),
        mean(float(bool(left) - bool(right)) for left, right in known),
    )


def pass_at(samples: list[Sample], bootstrap: Bootstrap) -> dict[int, Interval]:
    """Unbiased pass@k (Chen et al., 2021) where every problem has n > 1 samples, all scored."""
    answers: dict[str, list[bool | None]] = defaultdict(list)
    for sample in samples:
        answers[sample.item_id].append(sample.correct)
    n = max(map(len, answers.values()), default=0)
    if n < 2 or any(len(part) != n or None in part for part in answers.values()):
        return {}
    solved = [sum(map(bool, part)) for part in answers.values()]
    sizes = [step * 10**power for power in range(len(str(n))) for step in (1, 2, 5)]
    return {
        k: bootstrap.mean([1 - math.comb(n - right, k) / math.comb(n, k) for right in solved])
        for k in [*(size for size in sizes if size < n), n]
    }


def compression_ratio(samples: Sequence[Sample], bootstrap: Bootstrap) -> Interval:
    """Compressed over original bytes of whole outputs, by the last point of each curve."""
    ends = ((s.item_id, [point for point in s.curve if point[1] > 0]) for s in samples)
    ratios = ((item, points[-1][2] / points[-1][1], 1) for item, points in ends if points)
    return bootstrap.ratio(sums_by_problem(ratios))
