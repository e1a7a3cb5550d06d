"""Sums, means and ratios over samples and over pairs of them; what is missing stays out and None.

Sums are exact (`math.fsum`), so that no order of the samples moves a result.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import Interval, Ratio, sign_flips, swaps
from experiments.store.samples.sample import Sample, is_usable

PairKey = tuple[str, str, str, int]
Pairs = list[tuple[Sample, Sample]]
Cost = Callable[[Sample], float | None]


def pair_up(usable: list[Sample], partners: Mapping[PairKey, Sample]) -> Pairs:
    """Each sample beside its partner, where there is a usable one."""
    found = ((sample, partners.get(sample.pair)) for sample in usable)
    return [(mine, theirs) for mine, theirs in found if theirs is not None and is_usable(theirs)]


def uncensored(pairs: Pairs) -> Pairs:
    """Those whose partner ended by itself: of one cut at its cap no length or cost is known."""
    return [pair for pair in pairs if pair[1].status != "capped"]


def tokens_of(sample: Sample) -> int:
    """Tokens of a sample known to have them."""
    return sample.tokens or 0


def paid_of(sample: Sample) -> int:
    """Tokens of a sample known to have them."""
    return sample.paid_tokens or 0


def keys_read_of(sample: Sample) -> float | None:
    """Keys read over all steps, layers and KV heads."""
    return sample.keys_read


def sec_of(sample: Sample) -> float | None:
    """Prefill and decode: the paper's TTFT + length x TBT, measured."""
    if sample.prefill_sec is None or sample.decode_sec is None:
        return None
    return sample.prefill_sec + sample.decode_sec


def per_solved(samples: Iterable[Sample], cost: Cost, bootstrap: Bootstrap) -> Interval:
    """What all scored samples cost over how many are solved; nothing when none is."""
    known = ((sample, cost(sample)) for sample in samples if sample.correct is not None)
    sums = by_problem(
        (sample.item_id, spent, float(bool(sample.correct)))
        for sample, spent in known
        if spent is not None
    )
    return bootstrap.ratio(sums)


def per_solved_ratio(pairs: Pairs, cost: Cost, bootstrap: Bootstrap) -> Ratio:
    """Cost per solved problem of the first over that of the second of each pair.

    What differs is a problem's cost or answers.
    """
    sums = by_problem(
        (m.item_id, cost(m) or 0.0, float(bool(m.correct)), cost(t) or 0.0, float(bool(t.correct)))
        for m, t in pairs
        if None not in (cost(m), cost(t), m.correct, t.correct)
    )
    differing = [one for one in sums if one[:2] != one[2:]]
    found = bootstrap.log_ratio(sums, len(differing))
    if not differing:
        return Ratio(found.estimate, found.low, found.high, p=1.0 if sums else None)
    same = np.asarray([[math.fsum(column)] for column in zip(*sums, strict=True)])
    theirs = np.asarray([[math.fsum(column)] for column in zip(*differing, strict=True)])
    rest = np.maximum(same - theirs, 0.0)  # of the problems that do not differ

    def logs(of: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a, b, c, d = np.log(of + rest)
        return np.asarray(a - b - c + d)

    p = swaps(np.asarray(differing), logs, bootstrap.seed)
    return Ratio(found.estimate, found.low, found.high, p=p, differs=len(differing))


def ratio_of_sums(pairs: Pairs, cost: Cost) -> float | None:
    """Total cost of the first over that of the second of each pair; None where that is 0."""
    costs = [(cost(mine), cost(theirs)) for mine, theirs in pairs]
    known = [(mine, theirs) for mine, theirs in costs if mine is not None and theirs is not None]
    below = math.fsum(theirs for _, theirs in known)
    return math.fsum(mine for mine, _ in known) / below if below else None


def pass_at(n: int, solved: int, k: int) -> float:
    """The chance that k of n samples, drawn without putting back, hold one of the `solved`.

    1 - C(n - solved, k) / C(n, k): unbiased for k fresh samples (Chen et al., 2021), which the
    share of problems solved by the first k is too, but noisier.

    Raises:
        ValueError: k is not from 1 to n, or `solved` not from 0 to n.
    """
    if not (1 <= k <= n and 0 <= solved <= n):
        raise ValueError(f"pass@{k} of {n} samples, {solved} solved")
    return 1 - comb(n - solved, k) / comb(n, k)


def steps(n: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ... below n, then n."""
    size = 1
    while size < n:
        yield from (step * size for step in (1, 2, 5) if step * size < n)
        size *= 10
    yield n


@dataclass(frozen=True)
class Attempts:
    """Several samples of one problem; None and nothing unless every problem has all, scored.

    Attributes:
        each: samples of a problem.
        mean: share of all samples that are solved.
        any: share of problems that any sample solves.
        pass_at: the chance that k samples hold a correct one, by k = 1, 2, 5, 10, ... `each`.
    """

    each: int
    mean: float | None
    any: float | None
    pass_at: dict[int, Interval]


def attempts(samples: list[Sample], is_complete: bool, bootstrap: Bootstrap) -> Attempts:
    """avg@n and pass@k of a row, where every problem has all its n > 1 samples, scored.

    Intervals resample problems: samples of one are not independent of each other.
    """
    tried: dict[str, list[bool | None]] = defaultdict(list)
    for sample in samples:
        tried[sample.item_id].append(sample.correct)
    n = max(map(len, tried.values()))
    is_whole = is_complete and all(len(got) == n and None not in got for got in tried.values())
    solved = [sum(map(bool, got)) for got in tried.values()] if is_whole and n > 1 else []
    return Attempts(
        n,
        mean(of_problem / n for of_problem in solved),
        mean(float(of_problem > 0) for of_problem in solved),
        {
            k: bootstrap.mean([pass_at(n, of_problem, k) for of_problem in solved])
            for k in (steps(n) if solved else ())
        },
    )


def mean_curve(curves: Sequence[npt.NDArray[np.intc]]) -> tuple[tuple[int, float, int], ...]:
    """Mean ratio by tokens, only where every output that long has a point.

    The last point of an output lies between the common checks; averaging over the few outputs that
    happen to end there would put spikes into the curve.

    Args:
        curves: of each output its points (tokens, or -1 where not known; original bytes, more than
            0; compressed bytes).
    """
    ends = sorted(curve[:, 0].max(initial=0) for curve in curves)
    points = np.concatenate([np.empty((0, 3), np.intc), *curves])
    points = points[points[:, 0] >= 0]
    points = points[np.argsort(points[:, 0], kind="stable")]
    ratios = points[:, 2] / points[:, 1]
    tokens, first = np.unique(points[:, 0], return_index=True)
    of_each = zip(tokens.tolist(), np.split(ratios, first[1:]), strict=True) if len(tokens) else ()
    return tuple(
        (at, math.fsum(mine) / len(mine), len(mine))
        for at, mine in of_each
        if len(mine) == len(ends) - bisect.bisect_left(ends, at)
    )


def by_problem(items: Iterable[tuple[str, *tuple[float, ...]]]) -> list[tuple[float, ...]]:
    """Sums per problem: several samples of one problem are not independent of each other."""
    apart: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for item, *values in items:
        apart[item].append(tuple(values))
    return [
        rows[0] if len(rows) == 1 else tuple(map(math.fsum, zip(*rows, strict=True)))
        for rows in apart.values()
    ]


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def maximum(values: Iterable[int | None]) -> int | None:
    """Largest of the known values."""
    return max((value for value in values if value is not None), default=None)


# ---------------------------------------------------------------- lengths against full attention's


def long_pairs(pairs: Pairs) -> Pairs:
    """The pairs whose lengths can be divided."""
    return [(mine, theirs) for mine, theirs in pairs if mine.tokens and theirs.tokens]


def _clipped(most: float | None) -> Callable[[Sample, Sample], float]:
    """Gives the log of a pair's ratio of lengths, no further from 0 than `most`.

    The first of a pair is cut where it is `most` longer than the second: what is cut on one side is
    cut on the other, so that equal distributions have mean 0.
    """
    least = -math.inf if most is None else -most
    return lambda mine, theirs: max(
        least, min(-least, math.log(tokens_of(mine) / tokens_of(theirs)))
    )


def length_ratio(pairs: Pairs, bootstrap: Bootstrap, most: float | None) -> Ratio:
    """exp of the mean over problems of the mean of their clipped logs, and its sign-flip test.

    Args:
        pairs: of which the lengths can be divided, see `long_pairs`.
        bootstrap: gives the interval.
        most: the log of the cap's factor; None where the cap is a number of tokens.
    """
    of_pair = _clipped(most)
    sums = by_problem((m.item_id, of_pair(m, t), 1) for m, t in pairs)
    logs = [total / count for total, count in sums]
    found = bootstrap.log_mean(logs, most)
    return Ratio(
        found.estimate,
        found.low,
        found.high,
        p=sign_flips(logs, bootstrap.seed) if logs else None,
        differs=sum(abs(one) > 1e-12 for one in logs),
    )


def length_ratio_of(status: str, pairs: Pairs, most: float | None) -> float | None:
    """exp of the mean of the clipped logs of the pairs whose first ended that way."""
    of_pair = _clipped(most)
    found = mean(of_pair(mine, theirs) for mine, theirs in pairs if mine.status == status)
    return None if found is None else math.exp(found)


def mean_tokens(usable: list[Sample], bootstrap: Bootstrap) -> Interval:
    """Mean length of an output."""
    known = (one for one in usable if one.tokens is not None)
    return bootstrap.skewed_mean(by_problem((one.item_id, tokens_of(one), 1) for one in known))


def solved_by_both(pairs: Pairs) -> Pairs:
    """The pairs that both solve: longer though right."""
    return [(mine, theirs) for mine, theirs in pairs if mine.correct and theirs.correct]
