"""At which budgets a sparse method pays: where a solved problem costs less than it did."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace

from experiments.report.row import Cheaper, ReportRow, series

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
        ratio = row.keys_read_per_solved_ratio
        known_pairs = row.pairs > row.pairs_censored
        if ratio is None and row.accuracy == 0 and row.solved_lost and known_pairs:
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
        best_high=best.keys_read_per_solved_ratio_high,
    )


def _crossing(dearer: Point, cheaper: Point) -> float:
    """Where a line in the logarithms of budget and cost between two neighbours meets 1."""
    (there, above), (here, below) = dearer, cheaper
    if math.isinf(above) or below == 0:
        return float(here)
    above = max(above, 1.0)
    share = math.log(above) / (math.log(above) - math.log(below))
    return float(there * (here / there) ** share)
