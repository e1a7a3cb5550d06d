"""What may be said of a row: longer, fewer keys, loses; one rule for each, in both directions.

A claim stands where all of this holds:

- six problems or more differ from full attention's (`LEAST`);
- the exact test of pairs (lengths: sign flips of log ratios; keys: sides of problems swapped;
  answers: McNemar's, by problem) has p <= 0.05 after Benjamini and Hochberg's correction for all
  rows of the same kind: methods, or controls, of one model at one cap, without a detector;
- the 95% interval is clear of no change, and the estimate further from it than `MARGIN`;
- the interval does not overlap the null's, where a null was measured: what chance alone does to
  full attention is not said of a method. A null of which fewer than six problems differ counts as
  its estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from experiments.report.row import AtCap, ReportRow
from experiments.report.statistics import LEAST, LEVEL, benjamini_hochberg, tango

#: A ratio nearer to 1 than this is not called longer, shorter, fewer or more.
MARGIN = 0.02

#: The loss of accuracy that "keeps accuracy" must rule out.
LOSS = 0.05


@dataclass(frozen=True)
class Measure:
    """A number that claims are made of.

    Attributes:
        field: of the row; with `_low`, `_high` and `_p` behind it.
        above, below: what is claimed.
        middle: no change.
        margin: an estimate nearer to it is not called a change.
    """

    field: str
    above: str
    below: str
    middle: float
    margin: float


#: Of a row with a penalty, against the same without it.
_OF_PENALTY = (Measure("penalty_length_ratio", "longer", "shorter", 1.0, MARGIN),)

MEASURES = (
    Measure("length_ratio", "longer", "shorter", 1.0, MARGIN),
    Measure("length_ratio_solved", "longer solved", "shorter solved", 1.0, MARGIN),
    Measure("keys_read_per_solved_ratio", "more keys", "fewer keys", 1.0, MARGIN),
    Measure("accuracy_change", "gains", "loses", 0.0, 0.0),
)


class _Bounds(NamedTuple):
    value: float | None
    low: float | None
    high: float | None
    p: float | None
    differs: int


At = TypeVar("At", ReportRow, AtCap)


def with_claims(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Each row told what may be said of it, at its cap and at the smaller ones.

    Only rows without penalty and detector are compared with full attention in words; those with a
    penalty are compared with the same without it.
    """
    families: dict[tuple[str, str], list[int]] = defaultdict(list)
    penalised: dict[tuple[str, str], list[int]] = defaultdict(list)
    nulls: dict[tuple[str, str], ReportRow] = {}
    for at, row in enumerate(rows):
        if row.detector != "none":
            continue
        if row.penalty != "none":
            penalised[row.model, row.penalty].append(at)
        elif row.role == "null":
            nulls.setdefault((row.model, row.dataset), row)
        elif row.is_sparse:
            families[row.model, row.role].append(at)
    found = list(rows)
    for places in families.values():
        part = [rows[at] for at in places]
        beside = [nulls.get((row.model, row.dataset)) for row in part]
        mine = _claimed(part, beside, MEASURES)
        for cap in range(len(part[0].caps)):
            smaller = _claimed(
                [row.caps[cap] for row in part],
                [None if null is None else null.caps[cap] for null in beside],
                MEASURES,
            )
            mine = [
                replace(row, caps=(*row.caps[:cap], one, *row.caps[cap + 1 :]))
                for row, one in zip(mine, smaller, strict=True)
            ]
        for at, row in zip(places, mine, strict=True):
            found[at] = row
    for places in penalised.values():
        part = [rows[at] for at in places]
        for at, row in zip(places, _claimed(part, [None] * len(part), _OF_PENALTY), strict=True):
            found[at] = row
    return found


def _claimed(
    part: Sequence[At], nulls: Sequence[At | None], measures: Sequence[Measure]
) -> list[At]:
    """The rows of one family with their claims."""
    claims: list[tuple[str, ...]] = [()] * len(part)
    for measure in measures:
        bounds = [_bounds(one, measure.field) for one in part]
        beside = [None if one is None else _bounds(one, measure.field) for one in nulls]
        known = [
            at
            for at, one in enumerate(bounds)
            if one.value is not None and one.p is not None and one.differs
        ]
        after = benjamini_hochberg([bounds[at].p or 0.0 for at in known])
        for at, p in zip(known, after, strict=True):
            if p <= 1 - LEVEL:
                claims[at] += _claim(measure, bounds[at], beside[at])
    return [replace(one, claims=said) for one, said in zip(part, claims, strict=True)]


def _bounds(one: ReportRow | AtCap, field: str) -> _Bounds:
    value, low, high, p = (getattr(one, field + end) for end in ("", "_low", "_high", "_p"))
    if field == "accuracy_change":
        return _Bounds(value, low, high, p, (one.solved_lost or 0) + (one.solved_gained or 0))
    return _Bounds(value, low, high, p, getattr(one, f"{field}_differs"))


def _claim(measure: Measure, mine: _Bounds, null: _Bounds | None) -> tuple[str, ...]:
    if mine.value is None or mine.differs < LEAST:
        return ()
    low, high = -float("inf"), float("inf")  # of the null
    if null is not None and null.value is not None:
        known = null.low is not None and null.high is not None
        low = null.low if known and null.low is not None else null.value
        high = null.high if known and null.high is not None else null.value
    middle, far = measure.middle, abs(mine.value - measure.middle) >= measure.margin
    if mine.low is not None and mine.low > max(middle, high if null else middle) and far:
        return (measure.above,)
    if mine.high is not None and mine.high < min(middle, low if null else middle) and far:
        return (measure.below,)
    return ()


def keeps_accuracy(row: ReportRow) -> bool | None:
    """Whether a loss of `LOSS` is ruled out; None where no such number of problems could tell."""
    if row.accuracy_change_low is None:
        return None
    nothing_lost = tango(0, 0, row.problems).low
    if nothing_lost is None or nothing_lost <= -LOSS:
        return None
    return row.accuracy_change_low > -LOSS
