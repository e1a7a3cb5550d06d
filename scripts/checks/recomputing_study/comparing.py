"""One method beside another on the same problems: answers, lengths, costs, excess."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from recomputing.against import SIX, ends
from recomputing.intervals import (
    bootstrap_t,
    mcnemar,
    of_cost_ratio,
    of_log_mean,
    of_mean,
    sign_flips,
    tango,
    wilson,
)
from recomputing.means import mean, sums_interval
from scipy.stats import binomtest

from recomputing_study.stores import COSTS
from recomputing_study.texts import CLASSES, Text

Pair = tuple[Text, Text]
Found = dict[str, Any]

#: Seed of the document's resamples, without which a bootstrap-t cannot be had again.
SEED = 0
MARGIN = 0.05


def alone(texts: Sequence[Text], threads: float) -> Found:
    """What the texts of one method are.

    Args:
        texts: of all its problems.
        threads: of one worker, whose seconds a text's are.
    """
    n, solved = len(texts), sum(one.solved for one in texts)
    tokens = sum(one.tokens for one in texts)
    low, high = wilson(solved, n) if n else (None, None)
    right = [one for one in texts if one.until is not None]
    found: Found = {
        "n": n,
        "accuracy": {"estimate": solved / n, "low": low, "high": high},
        "ends": dict(Counter(one.end for one in texts)),
        "tokens": tokens,
        "classes": class_bands(texts, []),
        "first_is_right": sum(one.stated[0][1] == one.answer for one in texts if one.stated),
        "last_is_right": sum(one.stated[-1][1] == one.answer for one in texts if one.stated),
        "ever_right": len(right),
        "ceiling_solved": len(right),
        "ceiling_saved": share(texts, saved_by_ceiling, lambda one: one.tokens),
        "cost": {name: _known(math.fsum(one.cost[name] for one in texts)) for name in COSTS},
    }
    for way in ("right_to_wrong", "wrong_to_right", "wrong_to_wrong"):
        found[way] = sum(one.mends[way] for one in texts)
    known = [name for name in COSTS if found["cost"][name] is not None]
    found["per_solved"] = {name: _per_solved(texts, name) for name in known}
    spent = [(one.cost["seconds"], one.solved) for one in texts]
    spent = [(seconds, right) for seconds, right in spent if not math.isnan(seconds)]
    hours = math.fsum(seconds for seconds, _ in spent) * threads / 3600
    found["timed"] = len(spent)
    found["solved_per_cpu_hour"] = sum(right for _, right in spent) / hours if hours else None
    return found


def _known(total: float) -> float | None:
    return None if math.isnan(total) else total


def _share_of_excess(pairs: Sequence[Pair], name: str, most: int) -> Found:
    """Of the tokens beyond the other side's, those of a class: at least, or at most."""

    def part(pair: Pair) -> float:
        ours, its = pair
        unclear = ours.unclear if most else -its.unclear
        return ours.classes[name] - its.classes[name] + unclear

    return share(pairs, part, lambda x: x[0].tokens - x[1].tokens, lambda x: x[0].problem)


def _between(least: Found, most: Found) -> Found:
    """Ranges from what is least to what is most."""
    found: Found = {}
    for name, low in least.items():
        high = most[name]
        if low is None or high is None:
            found[name] = None
        else:
            ends_ = [x for one in (low, high) for x in (one if isinstance(one, tuple) else (one,))]
            found[name] = (min(ends_), max(ends_))
    return found


#: Tokens that it takes to end the sentence and write an answer once the right value is there.
ANSWERING = 11


def saved_by_ceiling(text: Text) -> int:
    """Tokens behind the first right value, less those of an answer."""
    return 0 if text.until is None else max(0, text.tokens - text.until - ANSWERING)


def share(
    values: Sequence[Any],
    part: Callable[[Any], float],
    whole: Callable[[Any], float],
    problem: Callable[[Any], object] = lambda one: one.problem,
) -> Found:
    """One sum over another, with the interval of problems drawn again."""
    total = math.fsum(map(whole, values))
    if not total:
        return {"estimate": None, "low": None, "high": None}
    low, high = sums_interval(
        values, lambda one: (float(part(one)), float(whole(one))), problem=problem
    )
    return {"estimate": math.fsum(map(part, values)) / total, "low": low, "high": high}


def ended_at_first(texts: Sequence[Text]) -> Found:
    """Texts that end with the first value that they state, with the tokens of an answer."""
    units: list[tuple[Text, bool, int]] = []
    by_problem: dict[str, list[int]] = {}
    for text in texts:
        right, paid = text.solved, text.tokens
        if text.stated:
            at, value = text.stated[0]
            right, paid = value == text.answer, min(text.tokens, at + ANSWERING)
        units.append((text, right, paid))
        by_problem.setdefault(text.problem, []).append(int(right) - int(text.solved))
    changes = [*chain.from_iterable(by_problem.values())]
    return {
        "texts": len(texts),
        "reached": sum(bool(text.stated) for text in texts),
        "solved": share(units, lambda one: one[1], lambda _: 1, lambda one: one[0].problem),
        "saved": share(units, lambda one: one[0].tokens - one[2], lambda one: one[0].tokens,
                       lambda one: one[0].problem),
        "lost": changes.count(-1),
        "gained": changes.count(1),
        "p": sign_flips([sum(some) for some in by_problem.values()]),
    }  # fmt: skip


def pooled(pairs: Sequence[Pair]) -> Found:
    """All methods' texts of a level beside full attention's."""
    ours = [a for a, _ in pairs]
    apart: dict[str, list[int]] = {}
    for a, b in pairs:
        apart.setdefault(a.problem, []).append(a.tokens - b.tokens)
    found: Found = {
        "texts": len(pairs),
        "solved": share(ours, lambda one: one.solved, lambda _: 1),
        "ever_right": share(ours, lambda one: one.until is not None, lambda _: 1),
        "first_right": share(
            ours, lambda one: bool(one.stated) and one.stated[0][1] == one.answer, lambda _: 1
        ),
        "harmed": share(ours, lambda one: one.mends["right_to_wrong"] > 0, lambda _: 1),
        **{
            way: [sum(text.mends[way] for text in side) for side in zip(*pairs, strict=True)]
            for way in ("right_to_wrong", "wrong_to_right")
        },
        "ceiling_saved": share(ours, saved_by_ceiling, lambda one: one.tokens),
        "longer": _mean_gap([mean(some) for some in apart.values()]),
        "ended_at_first": ended_at_first(ours),
        "shares": {},
    }
    for name in CLASSES:
        least, most = (_share_of_excess(pairs, name, side) for side in (0, 1))
        found["shares"][name] = least if least == most else _between(least, most)
    return found


def class_bands(ours: Sequence[Text], its: Sequence[Text]) -> dict[str, Any]:
    """Tokens by class, less the other side's.

    A range where lines that the language does not have may count as one class or as another.
    """
    sure = {
        name: sum(x.classes[name] for x in ours) - sum(x.classes[name] for x in its)
        for name in CLASSES
    }
    more, less = (sum(x.unclear for x in side) for side in (ours, its))
    if not more and not less:
        return dict(sure)
    return {name: (float(count - less), float(count + more)) for name, count in sure.items()}


def _per_solved(texts: Sequence[Text], cost: str) -> Found:
    solved = sum(one.solved for one in texts)
    if not solved:
        return {"estimate": None, "low": None, "high": None}
    units = [(one.cost[cost], float(one.solved)) for one in texts]
    found: Found = {"estimate": math.fsum(unit[0] for unit in units) / solved}
    found |= {"low": None, "high": None}
    if solved >= SIX:
        told = ends("cost", *bootstrap_t(units, of_log_mean, solved, SEED))
        found |= {"low": told["cost_low"], "high": told["cost_high"]}
    return found


def beside(ours: Mapping[str, Text], its: Mapping[str, Text], times: int) -> Found:
    """A method against another.

    Args:
        ours: texts by problem.
        its: the other's; problems that only one side has are left out.
        times: the cap as times full attention's length.
    """
    pairs = [(ours[problem], its[problem]) for problem in sorted(ours.keys() & its.keys())]
    n = len(pairs)
    lost = sum(b.solved and not a.solved for a, b in pairs)
    gained = sum(a.solved and not b.solved for a, b in pairs)
    low, high = tango(lost, gained, n) if n else (None, None)
    both = [(a, b) for a, b in pairs if a.until is not None and b.until is not None]
    found: Found = {
        "n": n,
        "solved": sum(a.solved for a, _ in pairs),
        "solved_other": sum(b.solved for _, b in pairs),
        "lost": lost,
        "gained": gained,
        "change": {"estimate": (gained - lost) / n if n else None, "low": low, "high": high},
        "p": mcnemar(lost, gained),
        "until_right": _difference(both, lambda one: one.until or 0),
        "after_right": _difference(both, lambda one: one.tokens - (one.until or 0)),
        "right_here_alone": sum(a.until is not None and b.until is None for a, b in pairs),
        "right_there_alone": sum(a.until is None and b.until is not None for a, b in pairs),
        "right_never": sum(a.until is None and b.until is None for a, b in pairs),
        "cut_before_right": sum(a.cut and a.until is None for a, _ in pairs),
        "ratio_solved": _ratio(
            [(a, b) for a, b in pairs if a.solved and b.solved], math.inf, math.log(times)
        ),
        "ratio_all": _ratio(pairs, math.log(times), math.log(times)),
        "ratio_of_sums": None,
        "per_solved_ratio": {name: _cost_ratio(pairs, name) for name in COSTS},
        "excess": _excess(pairs),
    }
    if n:
        found["ratio_of_sums"] = sum(a.tokens for a, _ in pairs) / sum(b.tokens for _, b in pairs)
    return found


def _difference(pairs: Sequence[Pair], number: Callable[[Text], int]) -> Found:
    return _mean_gap([float(number(a) - number(b)) for a, b in pairs])


def _mean_gap(gaps: Sequence[float]) -> Found:
    differing = sum(gap != 0 for gap in gaps)
    found: Found = {"estimate": mean(gaps) if gaps else None, "low": None, "high": None}
    found |= {"n": len(gaps), "differs": differing, "p": sign_flips(gaps) if gaps else None}
    if differing >= SIX:
        low, high = bootstrap_t([(gap, 1.0) for gap in gaps], of_mean, differing, SEED)
        found |= {"low": low, "high": high}
    return found


def _ratio(pairs: Sequence[Pair], most: float, bound: float) -> Found:
    logs = [float(np.clip(math.log(a.tokens / b.tokens), -most, most)) for a, b in pairs]
    differing = sum(abs(log) > 1e-12 for log in logs)
    found: Found = {"estimate": None, "low": None, "high": None, "p": None, "within": False}
    found |= {"n": len(logs), "differs": differing}
    if logs:
        found |= {"estimate": math.exp(mean(logs)), "p": sign_flips(logs)}
    if differing >= SIX:
        low, high = bootstrap_t([(log, 1.0) for log in logs], of_mean, differing, SEED)
        told = ends("ratio", max(low, -most), min(high, most))
        low_, high_ = told["ratio_low"], told["ratio_high"]
        found |= {"low": low_, "high": high_}
        found["within"] = (
            low_ is not None
            and high_ is not None
            and low_ > 1 / (1 + MARGIN)
            and high_ < 1 + MARGIN
        )
    elif len(logs) >= SIX:  # as many as may differ count as differing by the cap
        found["within"] = upper(differing, len(logs)) * bound <= math.log(1 + MARGIN)
    return found


def upper(count: int, n: int) -> float:
    """Of the exact 95% interval of a share."""
    return float(binomtest(count, n).proportion_ci(method="exact").high)


def _cost_ratio(pairs: Sequence[Pair], cost: str) -> Found:
    units = [(a.cost[cost], float(a.solved), b.cost[cost], float(b.solved)) for a, b in pairs]
    units = [unit for unit in units if not any(map(math.isnan, unit))]
    found: Found = {"estimate": None, "low": None, "high": None, "n": len(units)}
    if not units:
        return found
    spent, solved, its_spent, its_solved = (
        math.fsum(column) for column in zip(*units, strict=True)
    )
    if not solved or not its_solved:
        return found
    found["estimate"] = (spent / solved) / (its_spent / its_solved)
    differing = sum(unit[:2] != unit[2:] for unit in units)
    if differing >= SIX and min(solved, its_solved) >= SIX:
        told = ends("cost", *bootstrap_t(units, of_cost_ratio, differing, SEED))
        found |= {"low": told["cost_low"], "high": told["cost_high"]}
    return found


def _excess(pairs: Sequence[Pair]) -> Found:
    longer = [(a, b) for a, b in pairs if a.tokens > b.tokens]
    by_end: Counter[str] = Counter()
    for a, b in longer:
        by_end[a.end] += a.tokens - b.tokens
    return {
        "tokens": sum(a.tokens - b.tokens for a, b in pairs),
        "by_class": class_bands([a for a, _ in pairs], [b for _, b in pairs]),
        "longer": len(longer),
        "longer_by_class": class_bands([a for a, _ in longer], [b for _, b in longer]),
        "longer_by_end": dict(by_end),
    }
