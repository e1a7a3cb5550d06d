"""Lengths against full attention's: ratios that are 1 where nothing but chance differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import log

from experiments.report.aggregate import (
    Pairs,
    by_problem,
    mean,
    tokens_of,
)
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import Interval, Ratio, sign_flips
from experiments.store.samples.sample import Sample


def long_pairs(pairs: Pairs) -> Pairs:
    """The pairs whose lengths can be divided."""
    return [(mine, theirs) for mine, theirs in pairs if mine.tokens and theirs.tokens]


def _clipped(most: float | None) -> Callable[[Sample, Sample], float]:
    """Gives the log of a pair's ratio of lengths, no further from 0 than `most`.

    The first of a pair is cut where it is `most` longer than the second: what is cut on one side is
    cut on the other, so that equal distributions have mean 0.
    """
    least = -math.inf if most is None else -most
    return lambda mine, theirs: max(least, min(-least, log(tokens_of(mine) / tokens_of(theirs))))


def length_ratio(pairs: Pairs, bootstrap: Bootstrap, most: float | None) -> Ratio:
    """exp of the mean over problems of the mean of their clipped logs, and its sign-flip test.

    Args:
        pairs: of which the lengths can be divided, see `long_pairs`.
        bootstrap: gives the interval.
        most: the log of the cap's factor; None where the cap is a number of tokens.
    """
    of_pair = _clipped(most)
    sums = by_problem((m.item_id, of_pair(m, t), 1) for m, t in pairs)
    logs = [total / count for total, count in sums]
    found = bootstrap.log_mean(logs, most)
    return Ratio(
        found.estimate,
        found.low,
        found.high,
        p=sign_flips(logs, bootstrap.seed) if logs else None,
        differs=sum(abs(one) > 1e-12 for one in logs),
    )


def length_ratio_of(status: str, pairs: Pairs, most: float | None) -> float | None:
    """exp of the mean of the clipped logs of the pairs whose first ended that way."""
    of_pair = _clipped(most)
    found = mean(of_pair(mine, theirs) for mine, theirs in pairs if mine.status == status)
    return None if found is None else math.exp(found)


def mean_tokens(usable: list[Sample], bootstrap: Bootstrap) -> Interval:
    """Mean length of an output."""
    known = (one for one in usable if one.tokens is not None)
    return bootstrap.skewed_mean(by_problem((one.item_id, tokens_of(one), 1) for one in known))


def solved_by_both(pairs: Pairs) -> Pairs:
    """The pairs that both solve: longer though right."""
    return [(mine, theirs) for mine, theirs in pairs if mine.correct and theirs.correct]
