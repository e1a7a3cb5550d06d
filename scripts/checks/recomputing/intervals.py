"""Intervals and tests from their definitions, each by another way than a textbook's closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]

RESAMPLES = 10_000
#: Not the report's: equal numbers would say that two programs share a generator.
SEED = 20_261_122
_Z = float(stats.norm.ppf(0.975))


def wilson(solved: float, n: float) -> tuple[float, float]:
    """Wilson's 95% interval: the shares p with (observed - p)^2 = z^2 p (1 - p) / n."""
    share, wide = solved / n, _Z**2 / n
    low, high = sorted(np.real(np.roots([1 + wide, -(2 * share + wide), share**2])))
    return float(low), float(high)


def tango(lost: int, gained: int, n: int) -> tuple[float, float]:
    """Tango's 95% score interval of the difference of two paired shares, (gained - lost) / n.

    All differences d with |gained - lost - n d| <= z * sqrt(n (2 q + d - d^2)), q the likeliest
    probability of a loss where that of a gain is q + d.
    """
    seen = (gained - lost) / n

    def score(d: float) -> float:
        q = _likeliest_loss(lost, gained, n, d)
        spread = n * (2 * q + d - d * d)
        apart = gained - lost - n * d
        if spread <= 1e-15:
            return 0.0 if abs(apart) < 1e-12 else float(np.copysign(np.inf, apart))
        return float(apart / np.sqrt(spread))

    def bound(end: float, sign: float) -> float:
        # The score falls with d; at the end of what is possible it may still lie within.
        def off(d: float) -> float:
            return sign * np.clip(score(d), -1e6, 1e6) - _Z

        if off(end) <= 0:
            return end
        return float(optimize.brentq(off, end, seen, xtol=1e-14))

    tiny = 1e-12
    return bound(-1 + tiny, 1.0), bound(1 - tiny, -1.0)


def _likeliest_loss(lost: int, gained: int, n: int, d: float) -> float:
    """Maximum of lost log q + gained log(q + d) + rest log(1 - 2q - d): its derivative is zero."""
    rest = n - lost - gained
    low, high = max(0.0, -d), (1 - d) / 2
    # lost (q+d)(1-2q-d) + gained q (1-2q-d) - 2 rest q (q+d) = 0
    square = -2 * (lost + gained) - 2 * rest
    linear = lost * (1 - 3 * d) + gained * (1 - d) - 2 * rest * d
    constant = lost * d * (1 - d)
    roots = np.roots([square, linear, constant])
    real = np.real(roots[np.abs(np.imag(roots)) < 1e-9])
    inside = [float(q) for q in np.clip(real, low, high)]

    def likelihood(q: float) -> float:
        total = 0.0
        for count, p in ((lost, q), (gained, q + d), (rest, 1 - 2 * q - d)):
            if count:
                total += count * float(np.log(max(p, 1e-300)))
        return total

    return max([low, high, *inside], key=likelihood)


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided p: discordant pairs fall either way with probability a half."""
    return float(stats.binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0


class Resampled:
    """A statistic of resampled problems: quantiles, and how far those of another run may lie."""

    def __init__(self, problems: int, statistic: Callable[[NDArray[np.int64]], Floats]) -> None:
        rng = np.random.default_rng([SEED, problems])
        drawn = rng.integers(0, problems, (RESAMPLES, problems))
        with np.errstate(divide="ignore", invalid="ignore"):
            values = statistic(drawn)
        # Neither cost nor solved problems: no better than a cost without any solved.
        self.values = np.sort(np.where(np.isnan(values), np.inf, values))

    def quantile(self, share: float) -> float:
        """Of the resampled values; infinite where too many of them are."""
        return float(np.quantile(self.values, share, method="inverted_cdf"))

    def band(self, share: float) -> tuple[float, float]:
        """Where the same quantile of another 10,000 resamples lies but once in a million."""
        spread = 5 * np.sqrt(2 * share * (1 - share) / RESAMPLES)
        step = 2 / RESAMPLES  # quantiles are interpolated in more than one way
        low, high = max(0.0, share - spread - step), min(1.0, share + spread + step)
        return self.quantile(low), self.quantile(high)


def interval(
    problems: int, statistic: Callable[[NDArray[np.int64]], Floats]
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """Bands of the two ends of a bootstrap 95% percentile interval; one problem has none."""
    if problems < 2:
        return None, None
    resampled = Resampled(problems, statistic)
    return resampled.band(0.025), resampled.band(0.975)


# ---------------------------------------------------------------- bootstrap-t

Measure = Callable[[Floats], tuple[Floats, list[Floats]]]  # of column sums: value, its derivatives


def bootstrap_t(
    units: Sequence[tuple[float, ...]], measure: Measure, differing: int, seed: int
) -> tuple[float, float]:
    """Ends of the studentised bootstrap's 95% interval of what is made of sums over units.

    With the report's own resamples, so the ends are those of the report to the last digits.

    Args:
        units: numbers of each, in the columns that `measure` takes the sums of.
        measure: the value at sums of shape (columns, resamples), and its derivative by each.
        differing: how many units differ from their partner: Student's quantile is the least that
            an end is away.
        seed: of the report's resamples.
    """
    each = np.array(sorted(units), dtype=np.float64)
    n = len(each)
    drawn = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    times = np.stack([np.bincount(one, minlength=n) for one in drawn]).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        (number,), (error,) = _with_error(np.ones((1, n)), each, measure)
        if error < 1e-7:
            return float(number), float(number)
        numbers, errors = _with_error(times, each, measure)
        far = (numbers - number) / np.maximum(errors, error / 3)
    least = float(stats.t.ppf(0.975, differing - 1))
    upper = np.sort(np.where(np.isnan(far), np.inf, far))[math.ceil(0.975 * (RESAMPLES - 1))]
    lower = np.sort(np.where(np.isnan(far), -np.inf, far))[math.floor(0.025 * (RESAMPLES - 1))]
    return float(number - max(upper, least) * error), float(number + max(-lower, least) * error)


def _with_error(times: Floats, each: Floats, measure: Measure) -> tuple[Floats, Floats]:
    """Value and standard error of resamples that hold each unit so many times."""
    n = len(each)
    value, slopes = measure((times @ each).T)
    moved = np.stack(slopes, axis=1) @ each.T
    return value, np.sqrt(n / (n - 1) * (times * moved**2).sum(axis=1))


def of_mean(sums: Floats) -> tuple[Floats, list[Floats]]:
    """First sum over the second."""
    total, count = sums
    return total / count, [1 / count, -total / count**2]


def of_log_mean(sums: Floats) -> tuple[Floats, list[Floats]]:
    """Logarithm of the first sum over the second."""
    total, count = sums
    return np.log(total) - np.log(count), [1 / total, -1 / count]


def of_cost_ratio(sums: Floats) -> tuple[Floats, list[Floats]]:
    """Logarithm of (cost / solved) over the partner's (cost / solved)."""
    cost, solved, its_cost, its_solved = sums
    value = np.log(cost) - np.log(solved) - np.log(its_cost) + np.log(its_solved)
    return value, [1 / cost, -1 / solved, -1 / its_cost, 1 / its_solved]


# ---------------------------------------------------------------- tests that exchange two sides

#: With so many that differ all exchanges are tried, with more this many at random; of more than
#: `MANY` the reports try a tenth of them.
ALL_OF = 16
EXCHANGES = 100_000
MANY = 100

P = float | tuple[float, float]  # exact, or between which another program's draws find it


def sign_flips(values: Sequence[float]) -> P:
    """Two-sided p of their sum, each being as likely of the other sign."""
    differing = np.array([value for value in values if abs(value) > 1e-12])
    if len(differing) < 2:
        return 1.0
    return _exchanges(len(differing), lambda flipped: (1 - 2 * flipped) @ differing)


def swaps(units: Sequence[Sequence[float]]) -> P:
    """Two-sided p of the cost ratio, each unit's two sides being exchangeable."""
    each = np.array(sorted(units), dtype=np.float64)
    differing = [at for at, one in enumerate(each) if differs(one)]
    if not differing:
        return 1.0
    moved = each[differing]
    change = np.concatenate([moved[:, 2:], moved[:, :2]], axis=1) - moved

    def ratio(swapped: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return of_cost_ratio((each.sum(axis=0) + swapped @ change).T)[0]

    return _exchanges(len(differing), ratio)


def differs(unit: Sequence[float]) -> bool:
    """Whether cost and solved are not the partner's."""
    cost, solved, its_cost, its_solved = unit
    return solved != its_solved or abs(cost - its_cost) > 1e-12 * abs(cost)


def _exchanges(units: int, statistic: Callable[[Floats], Floats]) -> P:
    (seen,) = np.abs(statistic(np.zeros((1, units))))

    def far(chosen: Floats) -> int:
        found = np.abs(statistic(chosen))
        # Without a solved problem on a side the ratio is infinite, or none.
        least = seen - 1e-10 * max(1.0, seen) if np.isfinite(seen) else np.inf
        return int((np.isnan(found) | (found >= least)).sum())

    if units <= ALL_OF:
        chosen = (np.arange(2**units)[:, None] >> np.arange(units)) & 1
        return far(chosen.astype(np.float64)) / 2**units
    rng = np.random.default_rng([SEED, units])
    step = 10_000
    blocks = (rng.integers(0, 2, (step, units)) for _ in range(EXCHANGES // step))
    p = (sum(far(block.astype(np.float64)) for block in blocks) + 1) / (EXCHANGES + 1)
    # Both are drawn; a few draws more than the five deviations where they are few.
    its = EXCHANGES if units <= MANY else EXCHANGES // 10
    apart = 5 * math.sqrt(p * (1 - p) * (1 / EXCHANGES + 1 / its)) + 10 / its
    return max(0.0, p - apart), min(1.0, p + apart)
