"""What may be said of each row, from the rows' own numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

#: Measure, what to call more and less of it, and where neither is.
SAID = {
    "length_ratio": ("longer", "shorter", 1.0),
    "length_ratio_solved": ("longer solved", "shorter solved", 1.0),
    "keys_read_per_solved_ratio": ("more keys", "fewer keys", 1.0),
    "accuracy_change": ("gains", "loses", 0.0),
    "penalty_length_ratio": ("longer", "shorter", 1.0),
}
LEVEL, LEAST, MARGIN = 0.05, 6, 0.02

View = Mapping[str, Any]  # a row, or what it is at a smaller cap
At = tuple[int, int | None]  # which row, at which of its smaller caps


def claims(rows: Sequence[Mapping[str, Any]]) -> dict[At, set[str]]:
    """The words of every row, and of every row at each smaller cap."""
    said: dict[At, set[str]] = {}
    views: dict[int | None, dict[int, View]] = {}
    for at, row in enumerate(rows):
        for factor, view in [(None, row), *((one["factor"], one) for one in row["caps"] or ())]:
            said[at, factor] = set()
            views.setdefault(factor, {})[at] = view
    for factor, seen in views.items():
        families: dict[tuple[str, ...], list[int]] = {}
        for at in seen:
            name = _family(rows[at])
            if name is not None:
                families.setdefault(name, []).append(at)
        nulls = {
            (rows[at]["model"], rows[at]["dataset"]): view
            for at, view in seen.items()
            if rows[at]["role"] == "null"
        }
        for (penalty, *_), members in families.items():
            for measure in SAID:
                if (measure == "penalty_length_ratio") != (penalty != "none"):
                    continue
                if measure not in seen[members[0]]:
                    continue
                for at in _different({at: seen[at] for at in members}, measure):
                    null = nulls.get((rows[at]["model"], rows[at]["dataset"]))
                    word = _word(seen[at], measure, null if penalty == "none" else None)
                    if word:
                        said[at, factor].add(word)
    return said


def _family(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    if row["detector"] != "none" or row["role"] == "null":
        return None
    if row["penalty"] != "none":
        return row["penalty"], row["model"]
    return None if row["backend"] == "full" else ("none", row["model"], row["role"])


def _differ(view: View, measure: str) -> int:
    if measure == "accuracy_change":
        return (view["solved_lost"] or 0) + (view["solved_gained"] or 0)
    return int(view[f"{measure}_differs"] or 0)


def _different(members: Mapping[int, View], measure: str) -> list[int]:
    """Those whose p withstands the step-up rule of Benjamini and Hochberg."""
    p = {
        at: view[f"{measure}_p"]
        for at, view in members.items()
        if _differ(view, measure) and None not in (view[measure], view[f"{measure}_p"])
    }
    ordered = sorted(p.values())
    passed = [one for at, one in enumerate(ordered, 1) if one * len(ordered) <= LEVEL * at]
    return [at for at, one in p.items() if passed and one <= passed[-1]]


def _word(view: View, measure: str, null: View | None) -> str | None:
    more, less, none = SAID[measure]
    number = view[measure]
    low, high = _interval(view, measure)
    if number is None or _differ(view, measure) < LEAST or low is high is None:
        return None
    if none and abs(number - none) < MARGIN:
        return None
    floor, ceiling = _unbounded(low, high)
    if null is not None and null[measure] is not None:
        its = _interval(null, measure)
        if its == (None, None):
            its = null[measure], null[measure]
        its_floor, its_ceiling = _unbounded(*its)
        if floor <= its_ceiling and its_floor <= ceiling:
            return None
    return more if floor > none else less if ceiling < none else None


def _interval(view: View, measure: str) -> tuple[float | None, float | None]:
    return view[f"{measure}_low"], view[f"{measure}_high"]


def _unbounded(low: float | None, high: float | None) -> tuple[float, float]:
    return -math.inf if low is None else low, math.inf if high is None else high
