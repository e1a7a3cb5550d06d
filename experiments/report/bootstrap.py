"""Bootstrap intervals of the reports: percentile, and studentised where numbers are skewed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.report.statistics import LEAST, LEVEL, NOTHING, Floats, Interval

RESAMPLES = 10_000

#: Counts of resamples kept for one sample size, and looked at at once.
_KEPT, _BLOCK = 1 << 28, 1 << 22

#: Errors of logs that are rounding alone, and logs that are as good as without bound.
_NOTHING, _HUGE = 1e-7, 300.0

#: A resample's spread is taken for no less than this part of the whole's; chosen by coverage on
#: ratios of which nearly all or hardly any are cut (3: at least 0.938 from 14 problems on).
_LEAST_SPREAD = 3.0


def _mean(sums: Floats) -> tuple[Floats, Floats]:
    """Mean from sums of values and of ones, and its derivatives by each."""
    mean = sums[0] / sums[1]
    return mean, np.stack([1 / sums[1], -mean / sums[1]])


class Bootstrap:
    """Bootstrap intervals from one seed, 10,000 resamples of problems each.

    `mean`, `ratio` and `of_sums` give percentile intervals (Efron, 1979), the same numbers as
    `scipy.stats.bootstrap(method="percentile")` with a generator of that seed. `skewed_mean`,
    `mean_difference`, `log_mean` and `log_ratio` give bootstrap-t intervals (Efron, 1981), for
    numbers of which few differ or which are skewed, where percentile intervals cover too little.
    The resamples are drawn once for each sample size instead of once for each interval, since a
    report asks for hundreds of intervals over equally many problems.

    Values are sorted first: the order in which samples were stored must not move an interval.
    """

    def __init__(self, seed: int, resamples: int = RESAMPLES) -> None:
        self.seed, self.resamples = seed, resamples
        self._counts: dict[int, NDArray[np.uint8]] = {}

    def mean(self, values: Sequence[float]) -> Interval:
        """Mean of independent values; no bounds for a single one, whose spread is unknown."""
        return self.ratio([(value, 1.0) for value in values])

    def ratio(self, pairs: Sequence[tuple[float, ...]]) -> Interval:
        """Sum of the first numbers over the sum of the second, resampled by pair.

        Nothing where the second numbers sum to 0; no bound where that happens in too many
        resamples, and none for a single pair.
        """
        return self.of_sums(pairs, lambda sums: sums[0] / sums[1])

    def of_sums(
        self, values: Sequence[tuple[float, ...]], combine: Callable[[Floats], Floats]
    ) -> Interval:
        """A number made of the columns' sums, rows resampled together.

        Args:
            values: rows of independent units.
            combine: from the sums, (columns, resamples) or (columns, 1), to the number; a sum may
                be 0, and what is then infinite bounds nothing on that side.
        """
        ordered = sorted(values)
        exact = [[math.fsum(column)] for column in zip(*ordered, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            estimate = float(combine(np.asarray(exact))[0]) if exact else math.nan
            if not math.isfinite(estimate):
                return NOTHING
            if len(ordered) == 1:
                return Interval(estimate, None, None)
            drawn = combine(self._sums(np.asarray(ordered, dtype=np.float64)))
        if np.isnan(drawn).any():
            return Interval(estimate, None, None)
        tail = 50 * (1 - LEVEL)
        if np.isfinite(drawn).all():
            low, high = map(float, np.percentile(drawn, [tail, 100 - tail]))
        else:  # beside an infinite value there is nothing to interpolate towards
            low = float(np.percentile(drawn, tail, method="lower"))
            high = float(np.percentile(drawn, 100 - tail, method="higher"))
        # Rounding alone can put a bound on the wrong side of the estimate (equal values).
        return Interval(
            estimate,
            min(low, estimate) if math.isfinite(low) else None,
            max(high, estimate) if math.isfinite(high) else None,
        )

    def skewed_mean(self, rows: Sequence[tuple[float, ...]], known: int | None = None) -> Interval:
        """Mean of what is never below 0 and has a long tail, such as lengths; or cost per solved.

        The interval is that of the mean's logarithm, so that it never reaches 0. Of lognormal
        lengths whose logs scatter by 0.9 it covers 0.92 with 14 problems, 0.95 from 32 on; where a
        cap cuts them, 0.96 (percentile intervals: 0.84, 0.91).

        Args:
            rows: total and count of each problem.
            known: units that say anything, all by default; of fewer than six there is no interval.
        """
        total, count = (math.fsum(column) for column in zip(*rows, strict=True)) if rows else (0, 0)
        if not count:
            return NOTHING
        if not total:
            return Interval(0.0, None, None)

        def number(sums: Floats) -> tuple[Floats, Floats]:
            return np.log(sums[0] / sums[1]), np.stack([1 / sums[0], -1 / sums[1]])

        differing = len(rows) if known is None else known
        return self._studentised(rows, number, total / count, differing, None)

    def log_mean(self, logs: Sequence[float], most: float | None = None) -> Interval:
        """exp of the mean of independent logs; 1 is no difference.

        Args:
            logs: of ratios, one a problem.
            most: no log can be further from 0 than this; None where there is no such bound.
        """
        if not logs:
            return NOTHING
        mean = math.fsum(logs) / len(logs)
        differing = sum(abs(one) > 1e-12 for one in logs)
        rows = [(one, 1.0) for one in logs]

        return self._studentised(rows, _mean, math.exp(mean), differing, most)

    def mean_difference(self, values: Sequence[float]) -> Interval:
        """Mean of independent differences, one a problem; 0 is no difference.

        No interval where fewer than six differ.
        """
        if not values:
            return NOTHING
        mean = math.fsum(values) / len(values)
        rows = [(one, 1.0) for one in values]

        differing = sum(bool(one) for one in values)
        return self._studentised(rows, _mean, mean, differing, None, is_log=False)

    def log_ratio(self, rows: Sequence[tuple[float, ...]], differing: int) -> Interval:
        """Cost per solved of one side over that of the other: (a / b) / (c / d) of column sums.

        Args:
            rows: a, b, c, d of each problem: cost and solved of the first side, then the second's.
            differing: problems whose two sides differ.

        Nothing where the first or second side solves none; no interval where either solves fewer
        than six, or fewer than six problems differ.
        """
        sums = [math.fsum(column) for column in zip(*rows, strict=True)]
        if not rows or not all(sums):
            return NOTHING
        few = min(sums[1], sums[3]) < LEAST

        def number(sums: Floats) -> tuple[Floats, Floats]:
            logs = np.log(sums)
            return logs[0] - logs[1] - logs[2] + logs[3], np.stack(
                [1 / sums[0], -1 / sums[1], -1 / sums[2], 1 / sums[3]]
            )

        ratio = sums[0] / sums[1] * (sums[3] / sums[2])
        return self._studentised(rows, number, ratio, 0 if few else differing, None)

    def _studentised(
        self,
        rows: Sequence[tuple[float, ...]],
        number: Callable[[Floats], tuple[Floats, Floats]],
        estimate: float,
        differing: int,
        most: float | None,
        *,
        is_log: bool = True,
    ) -> Interval:
        """exp of a number of column sums, or the number, with a bootstrap-t interval.

        Where few units differ the resamples know too little of the spread: the interval is at least
        Student's with as many degrees of freedom as differ, less one.

        Args:
            rows: of independent units.
            number: from column sums, (columns, resamples), to the number and its derivatives by
                each sum.
            estimate: what is told, from exact sums.
            differing: units that say anything; below six there is no interval.
            most: the number cannot be further from 0 than this.
            is_log: exp of the number is told, instead of the number.
        """
        from scipy.stats import t

        values = np.asarray(sorted(rows), np.float64)
        n = len(values)
        (at,), slopes = number(values.sum(axis=0)[:, None])
        if differing < LEAST:
            return Interval(estimate, None, None)
        width = values.shape[1]
        first, second = np.triu_indices(width)
        twice = np.where(first == second, 1.0, 2.0)
        grow = n / (n - 1)

        def spread(slopes: Floats, products: Floats) -> Floats:
            # The variance of the number by its derivatives: the sum of squares of each unit's part.
            parts = slopes[first] * slopes[second] * twice[:, None] * products
            return np.asarray(np.sqrt(np.maximum(parts.sum(axis=0) * grow, 0.0)))

        products = values[:, first] * values[:, second]
        error = float(spread(slopes, products.sum(axis=0)[:, None])[0])
        if error < _NOTHING:
            return Interval(estimate, estimate, estimate)
        sums = self._sums(np.concatenate([values, products], axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn, drawn_slopes = number(sums[:width])
            errors = spread(drawn_slopes, sums[width:])
            # A resample in which hardly anything varies would say that nothing bounds the number.
            far = (drawn - at) / np.maximum(errors, error / _LEAST_SPREAD)
        # Resamples in which nothing is solved bound nothing on either side.
        lower, upper = np.where(np.isnan(far), -np.inf, far), np.where(np.isnan(far), np.inf, far)
        tail = 50 * (1 - LEVEL)
        least = float(t.ppf((1 + LEVEL) / 2, differing - 1))
        down = max(float(np.percentile(upper, 100 - tail, method="higher")), least)
        up = max(-float(np.percentile(lower, tail, method="lower")), least)
        low, high = at - down * error, at + up * error
        if most is not None:
            low, high = max(low, -most), min(high, most)
        if not is_log:
            bounds = (min(low, estimate), max(high, estimate))
            return Interval(estimate, *(x if math.isfinite(x) else None for x in bounds))
        return Interval(
            estimate,
            min(math.exp(low), estimate) if math.isfinite(low) else None,
            max(math.exp(high), estimate) if math.isfinite(high) and high < _HUGE else None,
        )

    def _sums(self, values: Floats) -> Floats:
        """Column sums of each resample: (columns, resamples)."""
        n = len(values)
        block = max(1, _BLOCK // n)
        if n * self.resamples > _KEPT:  # too many to keep: drawn again for each interval
            return np.concatenate(
                [part.astype(np.float64) @ values for part in self._drawn(n, block)]
            ).T
        if n not in self._counts:
            self._counts[n] = np.concatenate(list(self._drawn(n, block)))
        counts = self._counts[n]
        parts = (counts[at : at + block] for at in range(0, self.resamples, block))
        return np.concatenate([part.astype(np.float64) @ values for part in parts]).T

    def _drawn(self, n: int, block: int) -> Iterator[NDArray[np.uint8]]:
        """How often each of n values is drawn in each resample, `block` resamples at a time."""
        random = np.random.default_rng(self.seed)
        for at in range(0, self.resamples, block):
            here = min(block, self.resamples - at)
            drawn = random.integers(0, n, (here, n))
            flat = drawn + n * np.arange(here)[:, None]
            counts = np.bincount(flat.ravel(), minlength=n * here)
            yield counts.reshape(here, n).astype(np.uint8)
