"""Intervals and tests of the reports: Wilson, exact McNemar, percentile bootstrap.

Estimates stay exact where there is little data; what cannot be known is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 10_000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and the 95% interval around it; None where the data cannot give it."""

    estimate: float | None
    low: float | None
    high: float | None


NOTHING = Interval(None, None, None)


def wilson(solved: int, n: int) -> Interval:
    """Share solved with the Wilson 95% interval; nothing known without samples.

    Wilson (1927), from scipy. Samples count as independent, several of one problem included.
    """
    if n == 0:
        return NOTHING
    from scipy.stats import binomtest  # a second to import

    bounds = binomtest(solved, n).proportion_ci(LEVEL, method="wilson")
    return Interval(solved / n, float(bounds.low), float(bounds.high))


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided p of the exact McNemar test: were as many problems lost as gained?

    Args:
        lost: pairs solved before and not after.
        gained: pairs solved after and not before.

    McNemar (1947), exact binomial form, from scipy; 1 where no pair differs.
    """
    from scipy.stats import binomtest

    differing = lost + gained
    return float(binomtest(lost, differing).pvalue) if differing else 1.0


class Bootstrap:
    """Percentile bootstrap intervals from one seed, 10,000 resamples each (Efron, 1979).

    The same numbers as `scipy.stats.bootstrap(method="percentile")` with a generator of that
    seed. Ours draws the resamples once for each sample size instead of once for each interval,
    since a report asks for hundreds of intervals over equally many problems.

    Values are sorted first: the order in which samples were stored must not move an interval.
    """

    def __init__(self, seed: int, resamples: int = RESAMPLES) -> None:
        self.seed, self.resamples = seed, resamples
        self._counts: dict[int, Floats] = {}

    def mean(self, values: Sequence[float]) -> Interval:
        """Mean of independent values; no bounds for a single one, whose spread is unknown."""
        return self.ratio([(value, 1.0) for value in values])

    def ratio(self, pairs: Sequence[tuple[float, float]]) -> Interval:
        """Sum of the first numbers over the sum of the second, resampled by pair.

        Nothing where the second numbers sum to 0; no bounds where that happens in a resample, or
        for a single pair.
        """
        ordered = sorted(pairs)
        below = math.fsum(pair[1] for pair in ordered)
        if below == 0:
            return NOTHING
        estimate = math.fsum(pair[0] for pair in ordered) / below
        if len(ordered) == 1:
            return Interval(estimate, None, None)
        sums = self._resampled(len(ordered)) @ np.asarray(ordered, dtype=np.float64)
        if not sums[:, 1].all():
            return Interval(estimate, None, None)
        tail = 50 * (1 - LEVEL)
        low, high = np.percentile(sums[:, 0] / sums[:, 1], [tail, 100 - tail])
        # Rounding alone can put a bound on the wrong side of the estimate (equal values).
        return Interval(estimate, min(float(low), estimate), max(float(high), estimate))

    def _resampled(self, n: int) -> Floats:
        """How often each of n values is drawn in each resample: (resamples, n)."""
        if n not in self._counts:
            drawn = np.random.default_rng(self.seed).integers(0, n, (self.resamples, n))
            flat = drawn + n * np.arange(self.resamples)[:, None]
            counts = np.bincount(flat.ravel(), minlength=n * self.resamples)
            self._counts[n] = counts.reshape(self.resamples, n).astype(np.float64)
        return self._counts[n]
