"""Intervals and tests of the reports: Wilson, Tango, exact tests of pairs, corrections."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95

#: Problems that differ, or are solved, below which there is no interval of a ratio and no claim:
#: five that all point one way are chance at p = 0.06.
LEAST = 6

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and the 95% interval around it; None where the data cannot give it."""

    estimate: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def rest(self) -> Interval:
        """What is left of 1: the share saved where this is the share paid."""
        numbers = (self.estimate, self.high, self.low)
        return Interval(*(None if number is None else 1 - number for number in numbers))


@dataclass(frozen=True)
class Ratio(Interval):
    """A ratio of two sides of pairs, with p of the exact test that swaps problems' sides."""

    p: float | None = None
    differs: int = 0


@dataclass(frozen=True)
class Change(Interval):
    """A change of accuracy with McNemar's exact p; the second side alone solves `lost` pairs."""

    p: float | None = None
    lost: int | None = None
    gained: int | None = None


NOTHING = Interval()


def wilson(solved: float, n: float) -> Interval:
    """Share solved with Wilson's interval (1927); `n` need not be whole, see `effective`."""
    if not n:
        return NOTHING
    from statsmodels.stats.proportion import proportion_confint

    share = solved / n
    low, high = proportion_confint(solved, n, 1 - LEVEL, method="wilson")
    return Interval(share, min(float(low), share), max(float(high), share))


def tango(lost: float, gained: float, n: float) -> Interval:
    """Change of a share over n pairs: gained less lost, over n.

    Tango's score interval (Statistics in Medicine 17, 1998): all changes that the score test of
    paired shares does not reject. Unlike Wald's it is right with few pairs that differ, or none.
    """
    if not n:
        return NOTHING
    from scipy.optimize import brentq
    from scipy.stats import norm

    change = (gained - lost) / n

    def score(delta: float) -> float:
        # The likeliest share of pairs lost where the change is delta.
        middle = (2 * n - gained + lost) * delta - gained - lost
        below = lost * delta * (1 - delta)
        share = (math.sqrt(max(0.0, middle * middle + 8 * n * below)) - middle) / (4 * n)
        spread = n * (2 * share + delta * (1 - delta))
        return (gained - lost - n * delta) / math.sqrt(max(spread, 1e-300))

    edge, z = 1 - 1e-12, float(norm.ppf((1 + LEVEL) / 2))
    low = -1.0 if change <= -1 else brentq(lambda d: score(d) - z, -edge, change)
    high = 1.0 if change >= 1 else brentq(lambda d: score(d) + z, change, edge)
    return Interval(change, float(low), float(high))


def effective(values: Sequence[float], problems: Sequence[str]) -> float:
    """Independent values that say as much of a mean: n over Kish's design effect."""
    sums: dict[str, list[float]] = defaultdict(list)
    for value, problem in zip(values, problems, strict=True):
        sums[problem].append(value)
    n, clusters = len(values), len(sums)
    if n == clusters:
        return float(n)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    most = n / clusters
    if not squares or clusters == 1:
        return n / most
    between = math.fsum((math.fsum(part) - mean * len(part)) ** 2 for part in sums.values())
    effect = between / (clusters - 1) * clusters / (squares / (n - 1) * n)
    return n / min(max(effect, 1.0), most)


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided p of the exact McNemar test (1947) of pairs that are independent."""
    from statsmodels.stats.contingency_tables import mcnemar as test

    return float(test([[0, lost], [gained, 0]], exact=True).pvalue) if lost + gained else 1.0


def change_p(moved: Sequence[tuple[str, int]], seed: int) -> float:
    """Two-sided exact p of a change; `moved` holds each sample's problem and 1, 0 or -1."""
    sums: dict[str, int] = {}
    for problem, change in moved:
        sums[problem] = sums.get(problem, 0) + change
    if len(sums) == len(moved):
        changes = [change for _, change in moved]
        return mcnemar(changes.count(-1), changes.count(1))
    return sign_flips(list(sums.values()), seed)


def sign_flips(changes: Sequence[float], seed: int) -> float:
    """Two-sided p of a mean change by the sign-flip test (Fisher, 1935), problems as units."""
    moved = np.asarray([change for change in changes if change], np.float64)
    return swaps(np.stack([moved, -moved], axis=1), lambda sums: sums[0], seed)


#: Problems that differ up to which all signs are tried; above, so many draws, and of more than so
#: many problems a tenth of them.
_ENUMERATED, _DRAWS, _MANY = 16, 100_000, 100

_BLOCK = 1 << 22  # of ways times problems, looked at at once


def swaps(pairs: Floats, statistic: Callable[[Floats], Floats], seed: int) -> float:
    """Two-sided p of a number that compares two sides, either of which may be called the first.

    Were the sides alike, each problem's two could be swapped without moving what is expected. p is
    the share of swaps in which the number is as far from 0 as the measured one: of all swaps where
    16 problems or fewer differ, else of 100,000 draws and the measured one (Phipson and Smyth,
    2010), of 10,000 where more than 100 problems differ. scipy's `permutation_test` has neither
    this statistic of sums nor a bound on its memory.

    `pairs` holds of each problem that differs k numbers of the first side, then of the second,
    (problems, 2 k). `statistic` makes of their sums, (2 k, swaps), the number, which changes sign
    where all problems are swapped; nan counts as far from 0.
    """
    n, width = pairs.shape
    if n < 2:
        return 1.0  # either way it is as lopsided
    half = width // 2
    middle = (pairs[:, :half] + pairs[:, half:]).sum(axis=0)[:, None] / 2
    offsets = (pairs[:, :half] - pairs[:, half:]) / 2
    total = offsets.sum(axis=0)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        measured = np.abs(statistic(np.concatenate([middle + total, middle - total])))[0]
        # Sums that are equal but for rounding are as far.
        least, as_far, tried = measured * (1 - 1e-9) - 1e-12, 0, 0
        for swapped in _swapped(n, seed):
            moved = total - 2 * (offsets.T @ swapped.T)
            values = np.abs(statistic(np.concatenate([middle + moved, middle - moved])))
            as_far += int(np.count_nonzero(~(values < least)))
            tried += len(swapped)
    return as_far / tried if n <= _ENUMERATED else (as_far + 1) / (tried + 1)


def _swapped(n: int, seed: int) -> Iterator[Floats]:
    """Ways to swap some of n problems, (ways, n): all but the opposites, or draws of them."""
    if n <= _ENUMERATED:
        bits = (np.arange(1 << (n - 1))[:, None] >> np.arange(n)) & 1
        yield bits.astype(np.float64)
        return
    random, left = np.random.default_rng(seed), _DRAWS if n <= _MANY else _DRAWS // 10
    while left:
        here = min(left, max(1, _BLOCK // n))
        # Eight problems from each random byte.
        drawn = np.frombuffer(random.bytes(here * -(-n // 8)), np.uint8).reshape(here, -1)
        yield np.unpackbits(drawn, axis=1)[:, :n].astype(np.float64)
        left -= here


def corrected(p: Sequence[float], method: Literal["holm", "fdr_bh"]) -> list[float]:
    """Each p after correction for all: Holm (1979), or Benjamini and Hochberg (1995).

    statsmodels' `multipletests` collects garbage at each call: most of a report's time.
    """
    from scipy.stats import false_discovery_control

    if method == "fdr_bh" and len(p):
        return [float(value) for value in false_discovery_control(p)]
    order = np.argsort(p)
    ascending = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1))
    return [float(value) for value in np.minimum(ascending, 1.0)[np.argsort(order)]]


RESAMPLES = 10_000

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
