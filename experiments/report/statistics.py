"""Intervals and tests of the reports: Wilson, Tango, exact McNemar, percentile bootstrap.

Estimates stay exact where there is little data; what cannot be known is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

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


def wilson(solved: float, n: float) -> Interval:
    """Share solved with the Wilson 95% interval; nothing known without samples.

    Wilson (1927), in closed form, because `effective` makes numbers that are not whole.
    """
    if not n:
        return NOTHING
    z, share = _z(), solved / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Interval(share, min(low, share), max(high, share))


def tango(lost: float, gained: float, n: float) -> Interval:
    """Change of a share over n pairs with its 95% interval: gained less lost, over n.

    Tango's score interval (Statistics in Medicine 17, 1998): all changes that the score test of
    paired shares does not reject; unlike Wald's it is right with few pairs that differ, or none.

    Args:
        lost: pairs solved before and not after.
        gained: pairs solved after and not before.
        n: pairs, those that agree counted.
    """
    if not n:
        return NOTHING
    from scipy.optimize import brentq

    change = (gained - lost) / n

    def score(delta: float) -> float:
        # The likeliest share of pairs lost where the change is delta.
        middle = (2 * n - gained + lost) * delta - gained - lost
        below = lost * delta * (1 - delta)
        share = (math.sqrt(max(0.0, middle * middle + 8 * n * below)) - middle) / (4 * n)
        spread = n * (2 * share + delta * (1 - delta))
        return (gained - lost - n * delta) / math.sqrt(max(spread, 1e-300))

    edge, z = 1 - 1e-12, _z()
    low = -1.0 if change <= -1 else brentq(lambda d: score(d) - z, -edge, change)
    high = 1.0 if change >= 1 else brentq(lambda d: score(d) + z, change, edge)
    return Interval(change, float(low), float(high))


def effective(values: Sequence[float], problems: Sequence[str]) -> float:
    """How many independent values say as much about a mean as these, several a problem.

    n over Kish's design effect, the variance of the mean by problems over that of independent
    values, at least 1 and at most the samples a problem has; that also where nothing varies, as
    then nothing shows that samples of a problem differ.
    """
    sums: dict[str, list[float]] = {}
    for value, problem in zip(values, problems, strict=True):
        sums.setdefault(problem, []).append(value)
    n, clusters = len(values), len(sums)
    if n == clusters:
        return float(n)
    mean = math.fsum(values) / n
    alone = math.fsum((value - mean) ** 2 for value in values)
    most = n / clusters
    if not alone or clusters == 1:
        return n / most
    between = math.fsum((math.fsum(one) - mean * len(one)) ** 2 for one in sums.values())
    effect = between / (clusters - 1) * clusters / (alone / (n - 1) * n)
    return n / min(max(effect, 1.0), most)


def _z() -> float:
    return NormalDist().inv_cdf((1 + LEVEL) / 2)


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided p of the exact McNemar test: were as many problems lost as gained?

    Args:
        lost: pairs solved before and not after.
        gained: pairs solved after and not before.

    McNemar (1947), exact binomial form, from scipy; 1 where no pair differs. Pairs count as
    independent: `sign_flips` is the same test for several samples a problem.
    """
    from scipy.stats import binomtest

    differing = lost + gained
    return float(binomtest(lost, differing).pvalue) if differing else 1.0


def sign_flips(by_problem: Sequence[int], seed: int) -> float:
    """Two-sided p of a change, problems being independent and samples of one problem not.

    The exact McNemar test where each problem has one sample: under no change each problem's sum of
    changes is as likely its opposite. Enumerated where that is quick, else 100,000 draws, by scipy.

    Args:
        by_problem: gained less lost samples of each problem.
        seed: of the draws.
    """
    from scipy.stats import permutation_test

    differing = [one for one in by_problem if one]
    if len(differing) < 2:
        return 1.0  # either sign is as lopsided
    found = permutation_test(
        (differing, [0] * len(differing)),
        lambda first, second, axis: np.sum(first - second, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=100_000,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def change_p(moved: Sequence[tuple[str, int]], seed: int) -> float:
    """Two-sided exact p of a change, samples of one problem together.

    Args:
        moved: of each sample its problem and 1 gained, -1 lost, 0 as before.
        seed: of draws, where there are too many problems to enumerate.
    """
    sums: dict[str, int] = {}
    for problem, change in moved:
        sums[problem] = sums.get(problem, 0) + change
    if len(sums) == len(moved):
        changes = [change for _, change in moved]
        return mcnemar(changes.count(-1), changes.count(1))
    return sign_flips(list(sums.values()), seed)


def holm(p: Sequence[float]) -> list[float]:
    """Each p after Holm's correction for all of them (Scandinavian Journal of Statistics 6, 1979).

    What stays at or below a level then is wrong anywhere among them with at most that chance.
    """
    found, worst = [1.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        worst = max(worst, min(1.0, (len(p) - rank) * p[at]))
        found[at] = worst
    return found


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
            sums = self._resampled(len(ordered)) @ np.asarray(ordered, dtype=np.float64)
            drawn = combine(sums.T)
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

    def _resampled(self, n: int) -> Floats:
        """How often each of n values is drawn in each resample: (resamples, n)."""
        if n not in self._counts:
            drawn = np.random.default_rng(self.seed).integers(0, n, (self.resamples, n))
            flat = drawn + n * np.arange(self.resamples)[:, None]
            counts = np.bincount(flat.ravel(), minlength=n * self.resamples)
            self._counts[n] = counts.reshape(self.resamples, n).astype(np.float64)
        return self._counts[n]
