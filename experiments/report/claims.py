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

Beside them: at which budgets a sparse method pays, where a solved problem costs less than it did.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from experiments.report.row import AtCap, Cheaper, ReportRow, series
from experiments.report.statistics import LEAST, LEVEL, Change, Ratio, benjamini_hochberg, tango

#: A ratio nearer to 1 than this is not called longer, shorter, fewer or more.
MARGIN = 0.02

#: The loss of accuracy that "keeps accuracy" must rule out.
LOSS = 0.05


At = TypeVar("At", ReportRow, AtCap)
Tested = Ratio | Change


@dataclass(frozen=True)
class Measure:
    """A number that claims are made of.

    Attributes:
        field: of the row.
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
        bounds: list[Tested] = [getattr(one, measure.field) for one in part]
        beside = [None if one is None else getattr(one, measure.field) for one in nulls]
        known = [
            at
            for at, one in enumerate(bounds)
            if one.estimate is not None and one.p is not None and _differing(one)
        ]
        after = benjamini_hochberg([bounds[at].p or 0.0 for at in known])
        for at, p in zip(known, after, strict=True):
            if p <= 1 - LEVEL:
                claims[at] += _claim(measure, bounds[at], beside[at])
    return [replace(one, claims=said) for one, said in zip(part, claims, strict=True)]


def _differing(found: Tested) -> int:
    """How many pairs, or problems, differ."""
    return found.differs if isinstance(found, Ratio) else (found.lost or 0) + (found.gained or 0)


def _claim(measure: Measure, mine: Tested, null: Tested | None) -> tuple[str, ...]:
    if mine.estimate is None or _differing(mine) < LEAST:
        return ()
    low, high = -float("inf"), float("inf")  # of the null
    if null is not None and null.estimate is not None:
        known = null.low is not None and null.high is not None
        low = null.low if known and null.low is not None else null.estimate
        high = null.high if known and null.high is not None else null.estimate
    middle, far = measure.middle, abs(mine.estimate - measure.middle) >= measure.margin
    if mine.low is not None and mine.low > max(middle, high if null else middle) and far:
        return (measure.above,)
    if mine.high is not None and mine.high < min(middle, low if null else middle) and far:
        return (measure.below,)
    return ()


def keeps_accuracy(row: ReportRow) -> bool | None:
    """Whether a loss of `LOSS` is ruled out; None where no such number of problems could tell."""
    if row.accuracy_change.low is None:
        return None
    nothing_lost = tango(0, 0, row.problems).low
    if nothing_lost is None or nothing_lost <= -LOSS:
        return None
    return row.accuracy_change.low > -LOSS


Point = tuple[int, float]  # a budget, and cost per solved problem over full attention's


def with_cheaper(found: list[ReportRow]) -> list[ReportRow]:
    """Every row told at which budgets of its line a solved problem takes fewer keys."""
    apart: dict[tuple[str, ...], list[ReportRow]] = defaultdict(list)
    for row in found:
        apart[row.model, row.dataset, row.detector, row.action].append(row)
    told: dict[int, Cheaper | None] = {}
    for line in itertools.chain.from_iterable(series(part).values() for part in apart.values()):
        told.update(dict.fromkeys(map(id, line), _cheaper(line)))
    return [replace(row, cheaper=told[id(row)]) for row in found]


def _cheaper(line: list[ReportRow]) -> Cheaper | None:
    """The first and the last budget that cost less, and the best; None where no cost is known."""
    known: list[tuple[Point, ReportRow]] = []
    for row in line:
        ratio = row.keys_read_per_solved_ratio.estimate
        known_pairs = row.pairs > row.pairs_censored
        if (
            ratio is None
            and row.accuracy.estimate == 0
            and row.accuracy_change.lost
            and known_pairs
        ):
            ratio = math.inf  # full attention solves some, this none
        if row.budget is not None and ratio is not None:
            known.append(((row.budget, ratio), row))
    if not known:
        return None
    points = [point for point, _ in known]
    less = [at for at, (_, ratio) in enumerate(points) if ratio < 1 - 1e-9]
    if not less:
        return Cheaper(0, len(points), None, None, None, None, None, None, None)
    first, last = less[0], less[-1]
    (budget, ratio), best = min(known, key=lambda one: one[0][1])
    return Cheaper(
        budgets=len(less),
        of=len(points),
        first=_crossing(points[first - 1], points[first]) if first else float(points[0][0]),
        first_kind="crossing" if first and math.isfinite(points[first - 1][1]) else "at most",
        last=_crossing(points[last + 1], points[last])
        if last + 1 < len(points)
        else float(points[-1][0]),
        last_kind="crossing"
        if last + 1 < len(points) and math.isfinite(points[last + 1][1])
        else "at least",
        best=budget,
        best_ratio=ratio,
        best_high=best.keys_read_per_solved_ratio.high,
    )


def _crossing(dearer: Point, cheaper: Point) -> float:
    """Where a line in the logarithms of budget and cost between two neighbours meets 1."""
    (there, above), (here, below) = dearer, cheaper
    if math.isinf(above) or below == 0:
        return float(here)
    above = max(above, 1.0)
    share = math.log(above) / (math.log(above) - math.log(below))
    return float(there * (here / there) ** share)
