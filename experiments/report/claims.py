"""What may be claimed of a row: longer, fewer keys, loses; one rule for each, in both directions.

A claim holds where all of this holds:

- six problems or more differ from full attention's (`LEAST`);
- the exact test of pairs (lengths: sign flips of log ratios; keys: sides of problems swapped;
  answers: McNemar's, by problem) has p <= 0.05 after Benjamini and Hochberg's correction for all
  rows of the same kind: methods, or controls, of one model at one cap, without a detector;
- the 95% interval is clear of no change, and the estimate further from it than `MARGIN`;
- the interval does not overlap the null's, where a null was measured: what chance alone does to
  full attention is not claimed of a method. A null of which fewer than six problems differ counts
  as its estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from experiments.report.row import AtCap, ReportRow
from experiments.report.statistics import LEAST, LEVEL, Change, Ratio, corrected

#: A ratio nearer to 1 than this is not called longer, shorter, fewer or more.
MARGIN = 0.02

Measured = TypeVar("Measured", ReportRow, AtCap)
Tested = Ratio | Change


@dataclass(frozen=True)
class Measure:
    """A number of a row and the claims above and below `middle`, no change, but for `margin`."""

    of: Callable[[Any], Tested]
    above: str
    below: str
    middle: float = 1.0
    margin: float = MARGIN


#: Of a row with a penalty, against the same without it.
_OF_PENALTY = (Measure(lambda row: row.penalty_effect.length_ratio, "longer", "shorter"),)

MEASURES = (
    Measure(lambda row: row.length_ratio, "longer", "shorter"),
    Measure(lambda row: row.length_ratio_solved, "longer solved", "shorter solved"),
    Measure(lambda row: row.keys_read_per_solved_ratio, "more keys", "fewer keys"),
    Measure(lambda row: row.accuracy_change, "gains", "loses", 0.0, 0.0),
)


def with_claims(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Each row with its claims: against full attention, or against the same unpenalised."""
    families: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    nulls: dict[tuple[str, str], ReportRow] = {}
    for at, row in enumerate(rows):
        if row.detector != "none":
            continue
        if row.penalty != "none":
            families[row.model, row.penalty, True].append(at)
        elif row.role == "null":
            nulls.setdefault((row.model, row.dataset), row)
        elif row.is_sparse:
            families[row.model, row.role, False].append(at)
    result = list(rows)
    for (_, _, has_penalty), places in families.items():
        family = [rows[at] for at in places]
        if has_penalty:
            claimed = _claimed(family, [None] * len(family), _OF_PENALTY)
        else:
            claimed = _with_caps(family, [nulls.get((row.model, row.dataset)) for row in family])
        for at, row in zip(places, claimed, strict=True):
            result[at] = row
    return result


def _with_caps(family: list[ReportRow], nulls: list[ReportRow | None]) -> list[ReportRow]:
    by_cap = [
        _claimed(
            [row.caps[at] for row in family],
            [null.caps[at] if null else None for null in nulls],
            MEASURES,
        )
        for at in range(len(family[0].caps))
    ]
    claimed = _claimed(family, nulls, MEASURES)
    caps = zip(*by_cap, strict=True) if by_cap else [()] * len(family)
    return [replace(row, caps=tuple(cap)) for row, cap in zip(claimed, caps, strict=True)]


def _claimed(
    family: Sequence[Measured], nulls: Sequence[Measured | None], measures: Sequence[Measure]
) -> list[Measured]:
    """The rows of one family with their claims."""
    claims: list[tuple[str, ...]] = [()] * len(family)
    for measure in measures:
        numbers = [measure.of(row) for row in family]
        null = [None if row is None else measure.of(row) for row in nulls]
        known = [
            at
            for at, number in enumerate(numbers)
            if number.estimate is not None and number.p is not None and differing(number)
        ]
        p_values = corrected([numbers[at].p or 0.0 for at in known], "fdr_bh")
        for at, p in zip(known, p_values, strict=True):
            if p <= 1 - LEVEL:
                claims[at] += _claim(measure, numbers[at], null[at])
    return [replace(row, claims=of_row) for row, of_row in zip(family, claims, strict=True)]


def differing(number: Tested) -> int:
    """How many problems, or pairs, differ."""
    if isinstance(number, Ratio):
        return number.differs
    return (number.lost or 0) + (number.gained or 0)


def _claim(measure: Measure, number: Tested, null: Tested | None) -> tuple[str, ...]:
    if number.estimate is None or differing(number) < LEAST:
        return ()
    low = high = measure.middle
    if null is not None:
        if null.estimate is None:
            return ()  # what chance does is not known
        is_known = null.low is not None and null.high is not None
        low = min(low, null.low if is_known and null.low is not None else null.estimate)
        high = max(high, null.high if is_known and null.high is not None else null.estimate)
    is_far = abs(number.estimate - measure.middle) >= measure.margin
    if number.low is not None and number.low > high and is_far:
        return (measure.above,)
    if number.high is not None and number.high < low and is_far:
        return (measure.below,)
    return ()
