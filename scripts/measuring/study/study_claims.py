"""What the plan of the study lets be said of its numbers, and how often chance would say it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from comparisons import at_most, difference, geometric
from study_texts import COSTS, METHODS, Pair, Row

from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import LEAST, holm, mcnemar

#: A p of no more lets something be said; the share of solved problems that may be lost for free.
LEVEL, LOSS = 0.05, 0.01
#: By less nothing is longer or shorter.
CHANGE = 0.02


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


def changes(pairs: Sequence[Pair], cap: int) -> dict[str, list[float]]:
    """What the first of each pair has more than the second, by rule; swapping them changes signs.

    Lengths are logarithms of ratios; an answer gained is 1, lost -1.
    """
    read = [(m.at[cap], t.at[cap]) for m, t in pairs]
    right = [(m, t) for m, t in read if m.first_right is not None and t.first_right is not None]
    most = math.log(cap)
    return {
        "ratio_all": [max(-most, min(most, math.log(m.tokens / t.tokens)))
                      for m, t in read if m.tokens and t.tokens],
        "answers": [float(m.solved - t.solved) for m, t in read],
        "ratio_solved": [math.log(m.tokens / t.tokens)
                         for m, t in read if m.solved and t.solved],
        "until_right": [float(m.first_right - t.first_right) for m, t in right],
        "after_right": [float(m.after - t.after) for m, t in right],
    }  # fmt: skip


def speaks(rule: str, cells: Sequence[Sequence[float]], bootstrap: Bootstrap) -> bool:
    """Whether a rule says anything of any cell, for which the changes of each are given."""
    if rule == "answers":
        lost = [(sum(one < 0 for one in cell), sum(one > 0 for one in cell)) for cell in cells]
        return any(p <= LEVEL for p in holm([mcnemar(*one) for one in lost]))
    logs = rule.startswith("ratio")
    found = [geometric(cell, bootstrap) if logs else difference(cell, bootstrap) for cell in cells]
    tested = [one for one in found if one["p"] is not None]
    corrected = holm([one["p"] for one in tested])
    sure = [one for one, p in zip(tested, corrected, strict=True)
            if p <= LEVEL and one["low"] is not None]  # fmt: skip
    if logs:
        more = [one for one in sure if one["low"] > 1 and one["estimate"] >= 1 + CHANGE]
        return bool(more) or any(
            one["high"] < 1 and one["estimate"] <= 1 / (1 + CHANGE) for one in sure
        )
    return any(not one["low"] <= 0 <= one["high"] for one in sure)


def null_worlds(cells: Sequence[Mapping[str, Sequence[float]]], worlds: int, seed: int) -> Row:
    """How often each rule speaks of any cell when the sides of each problem are swapped at random.

    Args:
        cells: `changes` of each.
        worlds: trials.
        seed: of the swaps.
    """
    draw, bootstrap = np.random.default_rng(seed), Bootstrap(seed, 1000)
    spoke = dict.fromkeys(cells[0] if cells else (), 0)
    for _ in range(worlds):
        for rule in spoke:
            swapped = [(np.asarray(cell[rule]) * draw.choice((-1, 1), len(cell[rule]))).tolist()
                       for cell in cells]  # fmt: skip
            spoke[rule] += speaks(rule, swapped, bootstrap)
    return {"worlds": worlds, "spoke": spoke}


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
