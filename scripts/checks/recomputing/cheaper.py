"""At which budgets a solved problem takes fewer keys than under full attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def cheaper(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What rows that differ in budget alone say together; None where no cost is known."""
    known = sorted(
        (row["budget"], row["keys_read_per_solved_ratio"], row["keys_read_per_solved_ratio_high"])
        for row in rows
        if row["keys_read_per_solved_ratio"] is not None
    )
    # That a budget solves nothing is known as well, and saves nothing.
    nothing = sum(row["accuracy"] == 0 and bool(row["full_solves"]) for row in rows)
    if not known and not nothing:
        return None
    saving = [at for at, (_, ratio, _) in enumerate(known) if ratio < 1]
    found: dict[str, Any] = {"budgets": len(saving), "of": len(known) + nothing}
    names = ("first", "first_kind", "last", "last_kind", "best", "best_ratio", "best_high")
    if not saving:
        return found | dict.fromkeys(names)
    start, end = saving[0], saving[-1]
    best = min(saving, key=lambda at: known[at][1])
    found["best"], found["best_ratio"], found["best_high"] = known[best]
    found["first"], found["first_kind"] = (
        (_crossing(known[start - 1], known[start]), "crossing")
        if start
        else (float(known[start][0]), "at most")
    )
    found["last"], found["last_kind"] = (
        (_crossing(known[end], known[end + 1]), "crossing")
        if end + 1 < len(known)
        else (float(known[end][0]), "at least")
    )
    return found


def _crossing(low: Sequence[float], high: Sequence[float]) -> float:
    """Where the cost is full attention's, on a line in the logarithms of budget and cost."""
    (a, cost_a), (b, cost_b) = (map(math.log, one[:2]) for one in (low, high))
    return math.exp(a + (b - a) * cost_a / (cost_a - cost_b))
