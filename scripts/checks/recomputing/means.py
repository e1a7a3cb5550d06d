"""Means, groups and the percentile intervals of what is summed over resampled problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recomputing.intervals import Floats, interval

Band = tuple[float, float]


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean, of sums without rounding."""
    taken = list(values)
    return math.fsum(taken) / len(taken)


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def most(values: Iterable[int | None]) -> int | None:
    """The largest of those that are known."""
    return max((value for value in values if value is not None), default=None)


def grouped(values: Iterable[Any], key: Callable[[Any], object]) -> list[list[Any]]:
    """Those of one key together, in the order of their first."""
    found: dict[object, list[Any]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return list(found.values())


def mean_interval(
    values: Sequence[Any],
    number: Callable[[Any], float],
    problem: Callable[[Any], object] = lambda sample: sample.problem,
) -> tuple[Band | None, Band | None]:
    """Bands of the bootstrap interval of a mean over problems."""
    means = np.array([mean(map(number, one)) for one in grouped(values, problem)])

    def statistic(drawn: NDArray[np.int64]) -> Floats:
        found: Floats = means[drawn].mean(axis=1)
        return found

    return interval(len(means), statistic)


def sums_interval(
    values: Sequence[Any],
    numbers: Callable[[Any], tuple[float, ...]],
    of: Callable[[Floats], Floats] = lambda sums: sums[0] / sums[1],
    problem: Callable[[Any], object] = lambda sample: sample.problem,
) -> tuple[Band | None, Band | None]:
    """Bands of the bootstrap interval of what sums over the samples of resampled problems make."""
    sums = np.array(
        [np.sum([numbers(one) for one in group], axis=0) for group in grouped(values, problem)],
        dtype=np.float64,
    )

    def statistic(drawn: NDArray[np.int64]) -> Floats:
        return of(np.stack([column[drawn].sum(axis=1) for column in sums.T]))

    return interval(len(sums), statistic)


def always_some(clusters: Sequence[tuple[int, ...]]) -> bool:
    """Whether the second numbers add up to something in each of the report's own resamples.

    Where they do not in one of them there are no bounds. Only the report's generator knows: the
    seed is the presets'.
    """
    n = len(clusters)
    second = np.array([one[1] for one in sorted(clusters)])
    drawn = np.random.default_rng(0).integers(0, n, (10_000, n))
    return bool((second[drawn].sum(axis=1) > 0).all())
