"""One side's texts against another's on the same problems, and a cell's texts alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from study_texts import COSTS, Pair, Row, Text
from text_readings import CLASSES, TextReading
from trace_readings import CLOSING

from experiments.reasoner.judge import pieces
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import (
    LEAST,
    Interval,
    change_p,
    mcnemar,
    sign_flips,
    tango,
    wilson,
)

#: Lengths that differ by no more are the same.
MARGIN = 0.05


def interval(one: Interval) -> Row:
    return {"estimate": one.estimate, "low": one.low, "high": one.high}


def difference(values: Sequence[float], bootstrap: Bootstrap) -> Row:
    """Mean of differences, one a problem, with its interval and sign-flip test."""
    p = sign_flips(values, bootstrap.seed) if values else None
    differs = sum(bool(one) for one in values)
    return {
        **interval(bootstrap.mean_difference(values)),
        "n": len(values),
        "differs": differs,
        "p": p,
    }


def at_most(count: int, n: int) -> float:
    """Upper end of the exact interval of a share (Clopper and Pearson, 1934), 97.5%."""
    from scipy.stats import beta

    return float(beta.ppf(0.975, count + 1, n - count)) if count < n else 1.0


def geometric(
    logs: Sequence[float],
    bootstrap: Bootstrap,
    most: float | None = None,
    bound: float | None = None,
) -> Row:
    """Geometric mean of ratios, one a problem; whether it lies within the margin.

    Args:
        logs: of the ratios.
        bootstrap: behind the interval.
        most: logs were clipped to it.
        bound: what a single log can be, for means of which hardly any log differs from 0: those
            have no interval, and lie within the margin where as many as may differ, by the exact
            interval of their share, could be this far off.
    """
    found = bootstrap.log_mean(logs, most)
    low, high = found.low, found.high
    within = low is not None and high is not None and low > 1 / (1 + MARGIN) and high < 1 + MARGIN
    differs = sum(abs(one) > 1e-12 for one in logs)
    p = sign_flips(logs, bootstrap.seed) if logs else None
    if differs < LEAST <= len(logs) and bound is not None:
        within = at_most(differs, len(logs)) * bound <= math.log(1 + MARGIN)
    return {**interval(found), "n": len(logs), "differs": differs, "p": p, "within": within}


def compared(pairs: Sequence[Pair], cap: int, bootstrap: Bootstrap) -> Row:
    """The first of each pair against the second, at one cap."""
    read = [(m.at[cap], t.at[cap]) for m, t in pairs]
    right = [(m, t) for m, t in read if m.first_right is not None and t.first_right is not None]
    both = [(m, t) for m, t in read if m.solved and t.solved]
    lost = sum(t.solved and not m.solved for m, t in read)
    gained = sum(m.solved and not t.solved for m, t in read)
    long = [(m, t) for m, t in read if m.tokens and t.tokens]
    most = math.log(cap)
    sums = [sum(one.tokens for one in side) for side in zip(*read, strict=True)] or [0, 0]
    return {
        "n": len(read),
        "solved": sum(m.solved for m, _ in read),
        "solved_other": sum(t.solved for _, t in read),
        "lost": lost,
        "gained": gained,
        "change": interval(tango(lost, gained, len(read))),
        "p": mcnemar(lost, gained),
        "until_right": difference([m.first_right - t.first_right for m, t in right], bootstrap),
        "after_right": difference([m.after - t.after for m, t in right], bootstrap),
        "right_here_alone": sum(m.first_right is not None and t.first_right is None
                                for m, t in read),
        "right_there_alone": sum(t.first_right is not None and m.first_right is None
                                 for m, t in read),
        "right_never": sum(m.first_right is None and t.first_right is None for m, t in read),
        "cut_before_right": sum(m.end == "cut" and m.first_right is None for m, _ in read),
        "ratio_solved": geometric(
            [math.log(m.tokens / t.tokens) for m, t in both], bootstrap, bound=most
        ),
        "ratio_all": geometric(
            [max(-most, min(most, math.log(m.tokens / t.tokens))) for m, t in long],
            bootstrap,
            most,
            most,
        ),
        "ratio_of_sums": sums[0] / sums[1] if sums[1] else None,
        "per_solved_ratio": {cost: cost_ratio(pairs, cap, cost, bootstrap) for cost in COSTS},
        "excess": excess(read),
    }  # fmt: skip


def cost_ratio(pairs: Sequence[Pair], cap: int, cost: str, bootstrap: Bootstrap) -> Row:
    """Cost per solved problem of the first side over the second's."""
    rows = [
        (m.costs[cap][cost], float(m.at[cap].solved), t.costs[cap][cost], float(t.at[cap].solved))
        for m, t in pairs
    ]
    rows = [row for row in rows if not any(map(math.isnan, row))]
    differing = sum(row[:2] != row[2:] for row in rows)
    return {**interval(bootstrap.log_ratio(rows, differing)), "n": len(rows)}


def excess(read: Sequence[tuple[TextReading, TextReading]]) -> Row:
    """Tokens of the first side less the second's on the same problems, by class and by end."""
    by_class: Counter[str] = Counter()
    longer: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for mine, theirs in read:
        more = {one: mine.classes[one] - theirs.classes[one] for one in CLASSES}
        by_class.update(more)
        if mine.tokens > theirs.tokens:
            longer.update(more)
            ends[mine.end] += mine.tokens - theirs.tokens
    return {
        "tokens": sum(mine.tokens - theirs.tokens for mine, theirs in read),
        "by_class": {one: by_class[one] for one in CLASSES},
        "longer": sum(mine.tokens > theirs.tokens for mine, theirs in read),
        "longer_by_class": {one: longer[one] for one in CLASSES},
        "longer_by_end": dict(ends),
    }


def shares(rows: Sequence[tuple[str, float, float]], bootstrap: Bootstrap) -> Interval:
    """Sum of the first numbers over the sum of the second; problems are resampled whole."""
    found: dict[str, list[float]] = {}
    for item, first, second in rows:
        both = found.setdefault(item, [0.0, 0.0])
        both[0] += first
        both[1] += second
    return bootstrap.ratio([(first, second) for first, second in found.values()])


def pooled(cells: Sequence[Sequence[Pair]], cap: int, bootstrap: Bootstrap) -> Row:
    """All methods' cells of a level together against full attention; problems resampled whole.

    Args:
        cells: pairs of each.
        cap: which.
        bootstrap: of the level.
    """
    read = [(m.sample.item_id, m.at[cap], t.at[cap]) for pairs in cells for m, t in pairs]
    sides = [[one[at] for one in read] for at in (1, 2)]
    longer: dict[str, list[int]] = {}
    for item, mine, theirs in read:
        longer.setdefault(item, []).append(mine.tokens - theirs.tokens)
    means = [math.fsum(some) / len(some) for some in longer.values()]
    return {
        "cells": len(cells),
        "texts": len(read),
        "solved": interval(shares([(i, float(m.solved), 1.0) for i, m, _ in read], bootstrap)),
        "ever_right": interval(
            shares([(i, float(m.first_right is not None), 1.0) for i, m, _ in read], bootstrap)
        ),
        "first_right": interval(
            shares([(i, float(m.first_is_right), 1.0) for i, m, _ in read], bootstrap)
        ),
        "harmed": interval(
            shares([(i, float(m.right_to_wrong > 0), 1.0) for i, m, _ in read], bootstrap)
        ),
        **{
            name: [sum(getattr(one, name) for one in side) for side in sides]
            for name in ("right_to_wrong", "wrong_to_right")
        },
        "ceiling_saved": interval(
            shares([(i, m.tokens - stopped(m), m.tokens) for i, m, _ in read], bootstrap)
        ),
        "longer": difference(means, bootstrap),
        "ended_at_first": ended_at_first([(i, m) for i, m, _ in read], bootstrap),
        "shares": {
            name: interval(shares(
                [(i, m.classes[name] - t.classes[name], m.tokens - t.tokens) for i, m, t in read],
                bootstrap,
            ))
            for name in CLASSES
        },
    }  # fmt: skip


def ended_at_first(some: Sequence[tuple[str, TextReading]], bootstrap: Bootstrap) -> Row:
    """Texts that end with the goal's value when it is first stated; as they are without one.

    Args:
        some: texts and their problems.
        bootstrap: of the level.
    """
    ends = [
        (item, one, min(one.tokens, one.first_stated + ANSWERING), one.first_is_right)
        if one.first_stated is not None
        else (item, one, one.tokens, one.solved)
        for item, one in some
    ]
    moved = [(item, right - one.solved) for item, one, _, right in ends]
    return {
        "texts": len(ends),
        "reached": sum(one.first_stated is not None for _, one in some),
        "solved": interval(shares([(i, float(right), 1.0) for i, _, _, right in ends], bootstrap)),
        "saved": interval(shares([(i, one.tokens - tokens, one.tokens)
                                  for i, one, tokens, _ in ends], bootstrap)),
        "lost": sum(change < 0 for _, change in moved),
        "gained": sum(change > 0 for _, change in moved),
        "p": change_p(moved, bootstrap.seed),
    }  # fmt: skip


#: Tokens that end the sentence and write an answer once the right value is there.
ANSWERING = len(pieces(CLOSING))


def stopped(one: TextReading) -> int:
    """Tokens of a text that who knew the answer would stop at its first right value."""
    right = one.first_right
    return one.tokens if right is None else min(one.tokens, right + ANSWERING)


def alone(some: Sequence[Text], cap: int, threads: int, bootstrap: Bootstrap) -> Row:
    """What a cell's texts are, without a partner."""
    read = [one.at[cap] for one in some]
    solved = sum(one.solved for one in read)
    cost = {name: math.fsum(one.costs[cap][name] for one in some) for name in COSTS}
    timed = [one for one in some if not math.isnan(one.costs[cap]["seconds"])]
    seconds = math.fsum(one.costs[cap]["seconds"] for one in timed)
    tokens = sum(one.tokens for one in read)
    return {
        "n": len(read),
        "accuracy": interval(wilson(solved, len(read))),
        "ends": dict(Counter(one.end for one in read)),
        "tokens": tokens,
        "classes": {one: sum(text.classes[one] for text in read) for one in CLASSES},
        "first_is_right": sum(one.first_is_right for one in read),
        "last_is_right": sum(one.last_is_right for one in read),
        "ever_right": sum(one.first_right is not None for one in read),
        "right_to_wrong": sum(one.right_to_wrong for one in read),
        "wrong_to_right": sum(one.wrong_to_right for one in read),
        "wrong_to_wrong": sum(one.wrong_to_wrong for one in read),
        # Who knew the answer would stop at the first right value: nothing can do better.
        "ceiling_solved": sum(one.first_right is not None for one in read),
        "ceiling_saved": interval(bootstrap.ratio(
            [(float(one.tokens - stopped(one)), float(one.tokens)) for one in read]
        )),
        "cost": {name: None if math.isnan(total) else total for name, total in cost.items()},
        "per_solved": {
            name: interval(bootstrap.skewed_mean(
                [(one.costs[cap][name], float(one.at[cap].solved)) for one in some], solved
            ))
            for name in COSTS if not math.isnan(cost[name])
        },
        "timed": len(timed),
        "solved_per_cpu_hour": (
            3600 * sum(one.at[cap].solved for one in timed) / (seconds * threads)
            if seconds > 0
            else None
        ),
    }  # fmt: skip
