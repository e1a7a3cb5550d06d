"""Lengths against full attention's: ratios that are 1 where nothing but chance differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import log
from typing import Any

from experiments.report.aggregate import (
    Pairs,
    by_problem,
    mean,
    ratio_of_sums,
    tokens_of,
)
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import sign_flips
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


def length_ratio(
    name: str, both: Pairs, bootstrap: Bootstrap, most: float | None
) -> dict[str, Any]:
    """exp of the mean over problems of the mean of their clipped logs, and its sign-flip test."""
    of_pair = _clipped(most)
    sums = by_problem((m.item_id, of_pair(m, t), 1) for m, t in both)
    logs = [total / count for total, count in sums]
    found = bootstrap.log_mean(logs, most)
    return {
        name: found.estimate,
        f"{name}_low": found.low,
        f"{name}_high": found.high,
        f"{name}_p": sign_flips(logs, bootstrap.seed) if logs else None,
        f"{name}_differs": sum(abs(one) > 1e-12 for one in logs),
    }


def lengths(
    usable: list[Sample], pairs: Pairs, bootstrap: Bootstrap, most: float | None
) -> dict[str, Any]:
    """What a row says of lengths; `most` is the log of the cap's factor."""
    both = long_pairs(pairs)
    totals = by_problem((s.item_id, tokens_of(s), 1) for s in usable if s.tokens is not None)
    tokens = bootstrap.skewed_mean(totals)
    of_pair = _clipped(most)

    def ended(status: str) -> float | None:
        found = mean(of_pair(mine, theirs) for mine, theirs in both if mine.status == status)
        return None if found is None else math.exp(found)

    return {
        "mean_tokens": tokens.estimate,
        "mean_tokens_low": tokens.low,
        "mean_tokens_high": tokens.high,
        "mean_paid_tokens": mean(s.paid_tokens for s in usable),
        **length_ratio("length_ratio", both, bootstrap, most),
        "length_ratio_of_sums": ratio_of_sums(both, tokens_of),
        "length_ratio_finished": ended("ok"),
        "length_ratio_capped": ended("capped"),
        "length_ratio_stopped": ended("stopped"),
        **solved_by_both(both, bootstrap, most),
    }


def solved_by_both(both: Pairs, bootstrap: Bootstrap, most: float | None) -> dict[str, Any]:
    """The same over the pairs that both solve: longer though right."""
    solved = [(mine, theirs) for mine, theirs in both if mine.correct and theirs.correct]
    return {
        **length_ratio("length_ratio_solved", solved, bootstrap, most),
        "solved_by_both": len(solved),
    }
