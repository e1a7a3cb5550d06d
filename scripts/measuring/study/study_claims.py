"""What the plan of the study lets be said of its numbers, and how often chance would say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from comparisons import at_most, geometric
from study_texts import COSTS, METHODS, Row

from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import LEAST, holm

#: A p of no more lets something be said; the share of solved problems that may be lost for free.
LEVEL, LOSS = 0.05, 0.01


def with_holm(compared: Sequence[Row], name: str | None = None) -> None:
    """Put the corrected p of one outcome into comparisons; those without a test stay out.

    Args:
        compared: of one family.
        name: of the outcome; None for answers lost and gained.
    """
    told = [one if name is None else one[name] for one in compared]
    tested = [one for one in told if one["p"] is not None]
    for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
        one["p_holm"] = p


def claim(found: Row, null: Row | None) -> str | None:
    """What may be said of a geometric mean: longer, shorter, within the margin, or nothing."""
    p, low, high = found.get("p_holm", found["p"]), found["low"], found["high"]
    if found["within"]:
        return "within 5%"
    if p is None or p > LEVEL or low is None or high is None or found["differs"] < LEAST:
        return None
    said = "longer" if low > 1 else "shorter" if high < 1 else None
    apart = null is None or null["low"] is None or low > null["high"] or high < null["low"]
    return said if apart else None


def null_worlds(families: Sequence[Sequence[float]], worlds: int, seed: int) -> Row:
    """How often the rule speaks of any cell of a family when sides are swapped at random.

    Args:
        families: log ratios of each cell.
        worlds: trials.
        seed: of the swaps.
    """
    draw, bootstrap = np.random.default_rng(seed), Bootstrap(seed, 1000)
    spoke = 0
    for _ in range(worlds):
        found = [geometric([one * draw.choice((-1, 1)) for one in logs], bootstrap)
                 for logs in families]  # fmt: skip
        tested = [one for one in found if one["p"] is not None]
        for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
            one["p_holm"] = p
        spoke += any(claim(one, None) in ("longer", "shorter") for one in tested)
    return {"worlds": worlds, "spoke": spoke, "share": spoke / worlds if worlds else None}


def break_even(rows: Sequence[Row]) -> Iterator[Row]:
    """Budgets of each method that cost less, more, or cannot be told, by whole intervals."""
    for method in METHODS:
        mine = [row for row in rows if row["backend"] == method and not row["kept"]]
        for cost in COSTS if mine else ():
            told: dict[str, list[int]] = {"cheaper": [], "dearer": [], "open": []}
            for row in mine:
                one = row["against_full"]["per_solved_ratio"][cost]
                low, high = one["low"], one["high"]
                if one["estimate"] is None:
                    where = "dearer" if not row["solved"] else "open"
                elif high is not None and high < 1:
                    where = "cheaper"
                else:
                    where = "dearer" if low is not None and low > 1 else "open"
                told[where].append(row["budget"])
            yield {"backend": method, "cost": cost, **told}


def is_free(row: Row) -> bool:
    """Whether the oracle at this budget costs nothing, by whole intervals."""
    found = row["against_full"]
    return bool(
        row["backend"] == "oracle"
        and found["ratio_solved"]["within"]
        and found["solved_other"]
        and at_most(found["lost"], found["solved_other"]) <= LOSS
    )
