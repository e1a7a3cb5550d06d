"""Intervals and tests of the reports: Wilson, Tango, exact tests of pairs, bootstrap intervals.

Estimates stay exact where there is little data; what cannot be known is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 10_000

#: Problems that differ, or are solved, below which there is no interval of a ratio and nothing is
#: called clear: five that all point one way are chance at p = 0.06.
LEAST = 6

#: Counts of resamples kept for one sample size, and looked at at once.
_KEPT, _BLOCK = 1 << 28, 1 << 22

#: Errors of logs that are rounding alone, and logs that are as good as without bound.
_NOTHING, _HUGE = 1e-7, 300.0

#: A resample's spread is taken for no less than this part of the whole's; chosen by coverage on
#: ratios of which nearly all or hardly any are cut (3: at least 0.938 from 14 problems on).
_LEAST_SPREAD = 3.0

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


def sign_flips(by_problem: Sequence[float], seed: int) -> float:
    """Two-sided p of a mean change, problems being independent and samples of one problem not.

    Under no change each problem's change is as likely its opposite (Fisher, 1935); with changes of
    one size it is the exact McNemar test. See `swaps` for how many signs are tried.

    Args:
        by_problem: the change of each problem, its samples together.
        seed: of the draws, where there are too many problems to enumerate.
    """
    changes = np.asarray([one for one in by_problem if one], np.float64)
    return swaps(np.stack([changes, -changes], axis=1), lambda sums: sums[0], seed)


#: Problems that differ up to which all signs are tried; above, so many draws, and of more than so
#: many problems a tenth of them.
_ENUMERATED, _DRAWS, _MANY = 16, 100_000, 100


def swaps(pairs: Floats, statistic: Callable[[Floats], Floats], seed: int) -> float:
    """Two-sided p of a number that compares two sides, either of which may be called the first.

    Were the sides alike, each problem's two could be swapped without moving what is expected. The
    share of swaps in which the number is as far from 0 as the one found; of all swaps where 16
    problems or fewer differ, else of 100,000 draws and the one found (Phipson and Smyth, 2010).

    Args:
        pairs: of each problem that differs its numbers, (problems, 2 k): k of the first side, then
            the same k of the second.
        statistic: from the sums over problems, (2 k, swaps), to the number, which changes sign
            where all problems are swapped; nan counts as far from 0.
        seed: of the draws.
    """
    n, width = pairs.shape
    if n < 2:
        return 1.0  # either way it is as lopsided
    half = width // 2
    middle = (pairs[:, :half] + pairs[:, half:]).sum(axis=0)[:, None] / 2
    apart = (pairs[:, :half] - pairs[:, half:]) / 2
    is_it = apart.sum(axis=0)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.abs(statistic(np.concatenate([middle + is_it, middle - is_it])))[0]
        # Sums that are equal but for rounding are as far.
        least, as_far, of = found * (1 - 1e-9) - 1e-12, 0, 0
        for signs in _signs(n, seed):
            moved = apart.T @ signs.T
            tried = np.abs(statistic(np.concatenate([middle + moved, middle - moved])))
            as_far += int(np.count_nonzero(~(tried < least)))
            of += len(signs)
    return as_far / of if n <= _ENUMERATED else (as_far + 1) / (of + 1)


def _signs(n: int, seed: int) -> Iterator[Floats]:
    """All ways to give n problems signs, but for the opposite of each; or so many draws of them."""
    if n <= _ENUMERATED:
        bits = (np.arange(1 << (n - 1))[:, None] >> np.arange(n)) & 1
        yield np.asarray(1.0 - 2.0 * bits, np.float64)
        return
    random, left = np.random.default_rng(seed), _DRAWS if n <= _MANY else _DRAWS // 10
    while left:
        here = min(left, max(1, _BLOCK // n))
        # Eight signs from each random byte.
        drawn = np.frombuffer(random.bytes(here * -(-n // 8)), np.uint8).reshape(here, -1)
        yield np.asarray(1.0 - 2.0 * np.unpackbits(drawn, axis=1)[:, :n], np.float64)
        left -= here


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


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Each p after Benjamini and Hochberg's correction (JRSS B 57, 1995).

    Of what stays at or below a level then, at most that share is expected to be wrong; where
    nothing is to be found, the chance that anything stays is at most the level.
    """
    found, least = [1.0] * len(p), 1.0
    for rank, at in sorted(enumerate(sorted(range(len(p)), key=p.__getitem__), 1), reverse=True):
        least = min(least, p[at] * len(p) / rank)
        found[at] = least
    return found


class Bootstrap:
    """Bootstrap intervals from one seed, 10,000 resamples of problems each.

    `mean`, `ratio` and `of_sums` give percentile intervals (Efron, 1979), the same numbers as
    `scipy.stats.bootstrap(method="percentile")` with a generator of that seed. `log_mean` and
    `log_ratio` give bootstrap-t intervals (Efron, 1981), for numbers of which few differ or which
    are skewed, where percentile intervals cover too little. The resamples are drawn once for each
    sample size instead of once for each interval, since a report asks for hundreds of intervals
    over equally many problems.

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

        def number(sums: Floats) -> tuple[Floats, Floats]:
            mean = sums[0] / sums[1]
            return mean, np.stack([1 / sums[1], -mean / sums[1]])

        return self._studentised(rows, number, math.exp(mean), differing, most)

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
    ) -> Interval:
        """exp of a number of column sums with a bootstrap-t interval.

        Where few units differ the resamples know too little of the spread: the interval is at least
        Student's with as many degrees of freedom as differ, less one.

        Args:
            rows: of independent units.
            number: from column sums, (columns, resamples), to the number and its derivatives by
                each sum.
            estimate: exp of the number, from exact sums.
            differing: units that say anything; below six there is no interval.
            most: the number cannot be further from 0 than this.
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
