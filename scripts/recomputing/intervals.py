"""Intervals and tests from their definitions, each by another way than a textbook's closed form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]

RESAMPLES = 10_000
#: Not the report's: equal numbers would say that two programs share a generator.
SEED = 20_261_122
_Z = float(stats.norm.ppf(0.975))


def wilson(solved: int, n: int) -> tuple[float, float]:
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
