"""Bootstrap intervals of the reports: percentile, and studentised where numbers are skewed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.report.statistics import LEAST, LEVEL, NOTHING, Floats, Interval

RESAMPLES = 10_000

_BLOCK = 1 << 22  # counts looked at at once
_TAIL = 50 * (1 - LEVEL)

#: Errors of logs that are rounding alone, and logs that are as good as without bound.
_NO_ERROR, _HUGE = 1e-7, 300.0

#: A resample's spread is taken for no less than this part of the whole's; chosen by coverage on
#: ratios of which nearly all or hardly any are cut (3: at least 0.938 from 14 problems on).
_LEAST_SPREAD = 3.0

#: From column sums, (columns, resamples), to a number and its derivatives by each sum.
Statistic = Callable[[Floats], tuple[Floats, Floats]]


def _mean(sums: Floats) -> tuple[Floats, Floats]:
    mean = sums[0] / sums[1]
    return mean, np.stack([1 / sums[1], -mean / sums[1]])


def _log_of_ratio(sums: Floats) -> tuple[Floats, Floats]:
    return np.log(sums[0] / sums[1]), np.stack([1 / sums[0], -1 / sums[1]])


def _log_of_costs(sums: Floats) -> tuple[Floats, Floats]:
    logs = np.log(sums)
    slopes = np.stack([1 / sums[0], -1 / sums[1], -1 / sums[2], 1 / sums[3]])
    return logs[0] - logs[1] - logs[2] + logs[3], slopes


class Bootstrap:
    """Bootstrap intervals from one seed, 10,000 resamples of problems each.

    `mean` and `ratio` give percentile intervals (Efron, 1979), the same numbers as
    `scipy.stats.bootstrap(method="percentile")` with a generator of that seed. `skewed_mean`,
    `log_mean` and `log_ratio` give bootstrap-t intervals (Efron, 1981), which scipy has not, for
    numbers of which few differ or which are skewed, where percentile intervals cover too little.
    The resamples are drawn once for each sample size: a report asks for hundreds of intervals over
    equally many problems. Values are sorted first, so that no order of samples moves an interval.
    """

    def __init__(self, seed: int, resamples: int = RESAMPLES) -> None:
        self.seed, self.resamples = seed, resamples
        self._counts: dict[int, NDArray[np.uint8]] = {}

    def mean(self, values: Sequence[float]) -> Interval:
        """Mean of independent values; no bounds for a single one, whose spread is unknown."""
        return self.ratio([(value, 1.0) for value in values])

    def ratio(self, pairs: Sequence[tuple[float, ...]]) -> Interval:
        """Sum of the first numbers over that of the second; nothing where that is 0."""
        ordered = sorted(pairs)
        above, below = (math.fsum(pair[side] for pair in ordered) for side in (0, 1))
        if not below:
            return NOTHING
        estimate = above / below
        if len(ordered) == 1:
            return Interval(estimate)
        with np.errstate(divide="ignore", invalid="ignore"):
            first, second = self._sums(np.asarray(ordered, np.float64))
            drawn = first / second
        if np.isnan(drawn).any():
            return Interval(estimate)
        # Beside an infinite value there is nothing to interpolate towards.
        is_finite = bool(np.isfinite(drawn).all())
        low = float(np.percentile(drawn, _TAIL, method="linear" if is_finite else "lower"))
        high = float(np.percentile(drawn, 100 - _TAIL, method="linear" if is_finite else "higher"))
        # Rounding alone can put a bound on the wrong side of the estimate (equal values).
        return Interval(
            estimate,
            min(low, estimate) if math.isfinite(low) else None,
            max(high, estimate) if math.isfinite(high) else None,
        )

    def skewed_mean(self, rows: Sequence[tuple[float, ...]]) -> Interval:
        """Mean of long-tailed lengths, with the interval of its logarithm, never at 0."""
        total, count = (math.fsum(column) for column in zip(*rows, strict=True)) if rows else (0, 0)
        if not count:
            return NOTHING
        if not total:
            return Interval(0.0)
        return self._studentised(rows, _log_of_ratio, total / count, len(rows))

    def log_mean(self, logs: Sequence[float], most: float | None = None) -> Interval:
        """exp of the mean of independent logs, of which none is further from 0 than `most`."""
        if not logs:
            return NOTHING
        mean = math.fsum(logs) / len(logs)
        differing = sum(abs(log) > 1e-12 for log in logs)
        rows = [(log, 1.0) for log in logs]
        return self._studentised(rows, _mean, math.exp(mean), differing, most)

    def log_ratio(self, rows: Sequence[tuple[float, ...]], differing: int) -> Interval:
        """Cost per solved of one side over that of the other: (a / b) / (c / d) of column sums.

        Nothing where a side solves none; no interval where fewer than six problems are solved
        or differ.
        """
        sums = [math.fsum(column) for column in zip(*rows, strict=True)]
        if not rows or not all(sums):
            return NOTHING
        few = min(sums[1], sums[3]) < LEAST
        ratio = sums[0] / sums[1] * (sums[3] / sums[2])
        return self._studentised(rows, _log_of_costs, ratio, 0 if few else differing)

    def _studentised(
        self,
        rows: Sequence[tuple[float, ...]],
        number: Statistic,
        estimate: float,
        differing: int,
        most: float | None = None,
    ) -> Interval:
        """Bootstrap-t interval of exp(number), at least as wide as Student's."""
        from scipy.stats import t

        if differing < LEAST:
            return Interval(estimate)
        values = np.asarray(sorted(rows), np.float64)
        n, width = values.shape
        (at,), slopes = number(values.sum(axis=0)[:, None])
        first, second = np.triu_indices(width)
        twice = np.where(first == second, 1.0, 2.0)

        def spread(slopes: Floats, products: Floats) -> Floats:
            # The variance of the number by its derivatives: the sum of squares of each unit's part.
            parts = slopes[first] * slopes[second] * twice[:, None] * products
            return np.asarray(np.sqrt(np.maximum(parts.sum(axis=0) * (n / (n - 1)), 0.0)))

        products = values[:, first] * values[:, second]
        error = float(spread(slopes, products.sum(axis=0)[:, None])[0])
        if error < _NO_ERROR:
            return Interval(estimate, estimate, estimate)
        sums = self._sums(np.concatenate([values, products], axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn, drawn_slopes = number(sums[:width])
            errors = spread(drawn_slopes, sums[width:])
            # A resample in which hardly anything varies would say that nothing bounds the number.
            far = (drawn - at) / np.maximum(errors, error / _LEAST_SPREAD)
        # Resamples in which nothing is solved bound nothing on either side.
        lower, upper = np.where(np.isnan(far), -np.inf, far), np.where(np.isnan(far), np.inf, far)
        # Where few units differ the resamples know too little of the spread: at least Student's.
        least = float(t.ppf((1 + LEVEL) / 2, differing - 1))
        down = max(float(np.percentile(upper, 100 - _TAIL, method="higher")), least)
        up = max(-float(np.percentile(lower, _TAIL, method="lower")), least)
        low, high = at - down * error, at + up * error
        if most is not None:
            low, high = max(low, -most), min(high, most)
        return Interval(
            estimate,
            min(math.exp(low), estimate) if math.isfinite(low) else None,
            max(math.exp(high), estimate) if math.isfinite(high) and high < _HUGE else None,
        )

    def _sums(self, values: Floats) -> Floats:
        """Column sums of each resample: (columns, resamples)."""
        n = len(values)
        block = max(1, _BLOCK // n)
        if n not in self._counts:
            random = np.random.default_rng(self.seed)
            parts = [
                _counted(random.integers(0, n, (min(block, self.resamples - at), n)))
                for at in range(0, self.resamples, block)
            ]
            self._counts[n] = np.concatenate(parts)
        counts = self._counts[n]
        blocks = (counts[at : at + block] for at in range(0, self.resamples, block))
        return np.concatenate([part.astype(np.float64) @ values for part in blocks]).T


def _counted(drawn: NDArray[np.int64]) -> NDArray[np.uint8]:
    """How often each of n values is drawn in each resample, (resamples, n)."""
    count, n = drawn.shape
    flat = drawn + n * np.arange(count)[:, None]
    return np.bincount(flat.ravel(), minlength=n * count).reshape(count, n).astype(np.uint8)
