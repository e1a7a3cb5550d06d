"""Where a sparse method starts to pay: the budget at which a solved problem costs what it did."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace

from experiments.report.row import ReportRow, series


def with_break_even(found: list[ReportRow]) -> list[ReportRow]:
    """Every row told where its line over the budgets meets full attention's cost."""
    apart: dict[tuple[str, ...], list[ReportRow]] = defaultdict(list)
    for row in found:
        apart[row.model, row.dataset, row.detector, row.action].append(row)
    met: dict[int, tuple[float | None, str | None]] = {}
    for line in itertools.chain.from_iterable(series(part).values() for part in apart.values()):
        at = _break_even(line)
        met.update((id(row), at) for row in line)
    return [
        replace(row, break_even_budget=met[id(row)][0], break_even=met[id(row)][1]) for row in found
    ]


def _break_even(line: list[ReportRow]) -> tuple[float | None, str | None]:
    """Budget and kind of the last crossing of keys per solved problem with full attention's."""
    costs: list[tuple[int, float]] = []
    for row in line:
        ratio = row.keys_read_per_solved_ratio
        if ratio is None and row.accuracy == 0 and row.solved_lost:
            ratio = math.inf  # full attention solves some, this none
        if row.budget is not None and ratio is not None:
            costs.append((row.budget, ratio))
    if not costs:
        return None, None
    cheap = list(itertools.takewhile(lambda at: at[1] <= 1 + 1e-9, reversed(costs)))
    if not cheap:
        return None, "never"
    if len(cheap) == len(costs):
        return float(costs[0][0]), "at most"
    (high, below), (low, above) = cheap[-1], costs[len(costs) - len(cheap) - 1]
    if math.isinf(above) or below == 0:
        return float(high), "at most"
    below = min(below, 1.0)
    share = math.log(above) / (math.log(above) - math.log(below))
    return low * (high / low) ** share, "crossing"
