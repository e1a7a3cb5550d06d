"""Sums, means and ratios over samples and over pairs of them; what is missing stays out and None.

Sums are exact (`math.fsum`), so that no order of the samples moves a result.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import Interval, swaps
from experiments.store.samples.sample import Sample, is_usable

Key = tuple[str, str, str, int]
Pairs = list[tuple[Sample, Sample]]
Cost = Callable[[Sample], float | None]


def pair_up(usable: list[Sample], partners: Mapping[Key, Sample]) -> Pairs:
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


def per_solved_ratio(
    pairs: Pairs, cost: Cost, bootstrap: Bootstrap
) -> tuple[Interval, int, float | None]:
    """Cost per solved problem of the first over that of the second of each pair.

    Returns:
        The ratio, how many problems differ in cost or answers, and the two-sided p of swapping the
        sides of problems; None where nothing is known.
    """
    sums = by_problem(
        (m.item_id, cost(m) or 0.0, float(bool(m.correct)), cost(t) or 0.0, float(bool(t.correct)))
        for m, t in pairs
        if None not in (cost(m), cost(t), m.correct, t.correct)
    )
    differing = [one for one in sums if one[:2] != one[2:]]
    found = bootstrap.log_ratio(sums, len(differing))
    if not sums:
        return found, 0, None
    if not differing:
        return found, 0, 1.0
    same = np.asarray([[math.fsum(column)] for column in zip(*sums, strict=True)])
    theirs = np.asarray([[math.fsum(column)] for column in zip(*differing, strict=True)])
    rest = np.maximum(same - theirs, 0.0)  # of the problems that do not differ

    def logs(of: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a, b, c, d = np.log(of + rest)
        return np.asarray(a - b - c + d)

    return found, len(differing), swaps(np.asarray(differing), logs, bootstrap.seed)


def ratio_of_sums(pairs: Pairs, cost: Cost) -> float | None:
    """Total cost of the first over that of the second of each pair; None where that is 0."""
    costs = [(cost(mine), cost(theirs)) for mine, theirs in pairs]
    known = [(mine, theirs) for mine, theirs in costs if mine is not None and theirs is not None]
    below = math.fsum(theirs for _, theirs in known)
    return math.fsum(mine for mine, _ in known) / below if below else None


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
