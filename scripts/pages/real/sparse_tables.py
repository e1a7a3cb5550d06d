"""Tables of sparse methods on real models, and what may be said of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pages import chance, table
from wording import LEVEL, MODELS, Row, conditions, keeps_prompt, listed, name_of, number

from experiments.report.statistics import holm, mcnemar

#: The methods whose lengths docs/study/plan.md compares first, and what it takes for no change.
PRIMARY = ("quest", "h2o", "sink")
MARGIN = 1.05


def planned(part: Row) -> tuple[list[Row], list[float], list[float], Row]:
    """The planned comparisons: rows, p of their lengths and of their answers, and the null's row.

    Both kinds of p are corrected for all of the rows.
    """
    rows = [
        row
        for row in part["rows"]
        if row["backend"] in PRIMARY and not keeps_prompt(row) and row["role"] != "null"
    ]
    flips = [1.0 if (p := row["length_ratio_solved_p"]) is None else p for row in rows]
    moved = [mcnemar(row["solved_lost"], row["solved_gained"]) for row in rows]
    null = next(row for row in part["rows"] if row["role"] == "null")
    return rows, holm(flips), holm(moved), null


def verdict(row: Row, p: float, null: float) -> str:
    """What the plan lets be said of tokens where both solve.

    Args:
        row: of a method; its interval is None where fewer than six problems differ.
        p: of its sign flips, corrected.
        null: full attention's own ratio, with noise.
    """
    ratio, low, high = (row[f"length_ratio_solved{end}"] for end in ("", "_low", "_high"))
    if ratio is None or low is None or high is None:
        return "too few differ"
    if p <= LEVEL and (low > 1 or high < 1):
        if abs(math.log(ratio)) <= abs(math.log(null)):
            return "no more than the null"
        return "longer" if ratio > 1 else "shorter"
    return "within 5%" if low >= 1 / MARGIN and high <= MARGIN else "open"


def in_short(found: dict[str, Row]) -> Iterator[str]:
    """What may be said of them, each with its count."""
    if "table" not in found:
        return
    rows, flips, moved, null = planned(found["table"])
    ratio = null["length_ratio_solved"] or 1.0
    said = [verdict(row, p, ratio) for row, p in zip(rows, flips, strict=True)]
    told = ", ".join(f"{name} in {said.count(name)}" for name in dict.fromkeys(said))
    lost, gained = (
        sum(
            p <= LEVEL and (row["solved_lost"] > row["solved_gained"]) == less
            for row, p in zip(rows, moved, strict=True)
        )
        for less in (True, False)
    )
    yield (
        f"Where both solve, tokens over full attention's are, of {len(rows)} planned "
        f"comparisons: {told}."
    )
    yield (
        f"Answers are lost in {lost} of these {len(rows)} and gained in {gained} (exact "
        "McNemar, Holm)."
    )
    every = [row for row in found["table"]["rows"] if row["budget"] is not None]
    flips = holm([1.0 if (p := row["length_ratio_p"]) is None else p for row in every])
    apart = [row for row, p in zip(every, flips, strict=True) if p <= LEVEL]
    longer = [
        f"{name_of(row)} ({number(row, 'length_ratio')}, {row['capped']} of {row['n']} cut)"
        for row in apart
        if row["length_ratio_low"] is not None and row["length_ratio_low"] > 1
    ]
    shorter = [
        f"{name_of(row)} ({number(row, 'length_ratio')})"
        for row in apart
        if row["length_ratio_high"] is not None and row["length_ratio_high"] < 1
    ]
    yield (
        f"Over all problems, solved or not, texts are longer in {len(longer)} of {len(every)} "
        f"configurations{listed(longer)} and shorter in {len(shorter)}{listed(shorter)} "
        "(sign flips, Holm)."
    )


def full(found: dict[str, Row]) -> Iterator[str]:
    """Full attention's accuracy."""
    parts = ("qwen-coder-0.5b-greedy", "bf16-0.5b", "full-1.5b", "smollm2-greedy")
    rows = [
        (found[part], row)
        for part in parts
        if part in found
        for row in found[part]["rows"]
        if row["backend"] == "full" and row["role"] != "null"
    ]
    if not rows:
        return
    yield "## Full attention on GSM8K\n"
    yield table(
        ("model", "weights", "problems", "solved, %", "cut at the cap", "mean tokens"),
        [
            (
                MODELS.get(row["model"], row["model"]),
                part["dtype"] if part["weights"] == "stored" else part["weights"],
                str(row["n"]),
                number(row, "accuracy", ".1f", 100),
                str(row["capped"]),
                number(row, "mean_tokens", ".0f"),
            )
            for part, row in rows
        ],
        2,
    )


def sparse(found: dict[str, Row]) -> Iterator[str]:
    """The table of sparse methods."""
    if "table" not in found:
        return
    part, counts = found["table"], ("solved_lost", "solved_gained", "capped")
    yield "## Sparse attention on GSM8K\n"
    yield table(
        (
            "Qwen2.5-Coder-1.5B", "solved", "lost", "gained", "cut", "tokens, all",
            "tokens, both solve", "both", "keys / solved",
        ),
        [
            (
                name_of(row),
                f"{round(row['accuracy'] * row['n'])} of {row['n']}",
                *("" if row[x] is None else str(row[x]) for x in counts),
                number(row, "length_ratio"),
                number(row, "length_ratio_solved"),
                str(row["solved_by_both"] or ""),
                number(row, "keys_read_per_solved_ratio"),
            )
            for row in part["rows"]
        ],
    )  # fmt: skip
    yield (
        "Ratios to full attention on the same problems, geometric means with 95% intervals; keys / "
        "solved: of all keys read to the problems solved, over full attention's. "
        f"{conditions(part)}\n"
    )


def primary(found: dict[str, Row]) -> Iterator[str]:
    """The comparisons that docs/study/plan.md names first."""
    if "table" not in found:
        return
    rows, flips, moved, null = planned(found["table"])
    yield "### The six comparisons planned\n"
    yield table(
        ("", "both solve", "tokens", "p, Holm", "said", "lost", "gained", "p, Holm"),
        [
            (
                name_of(row),
                str(row["solved_by_both"]),
                number(row, "length_ratio_solved"),
                chance(p),
                verdict(row, p, null["length_ratio_solved"] or 1.0),
                str(row["solved_lost"]),
                str(row["solved_gained"]),
                chance(of_answers),
            )
            for row, p, of_answers in zip(rows, flips, moved, strict=True)
        ],
    )
    yield (
        "Tokens over full attention's where both solve. Said by [the plan](../study/plan.md): "
        "*longer* or *shorter* where sign flips corrected for all six leave 5% or less and the "
        "interval leaves out 1; "
        "*within 5%* where the interval lies there; else *open*. "
        f"The null is {number(null, 'length_ratio_solved')}, "
        f"{null['solved_lost']} lost and {null['solved_gained']} gained.\n"
    )  # fmt: skip


def paired(found: dict[str, Row]) -> Iterator[str]:
    """Methods beside the oracle and beside themselves without the prompt."""
    if "table" not in found:
        return
    yield "### Beside `oracle`, and with the prompt beside without\n"
    yield table(
        ("", "beside", "solved", "beside it", "lost", "gained", "p", "tokens, both solve", "both"),
        [
            (
                f"{row['method']} {row['budget']}" + (" with the prompt" * row["keep_prompt"]),
                row["beside"] + (" without it" * (row["beside"] == row["method"])),
                *(str(row[x]) for x in ("solved", "solved_beside", "lost", "gained")),
                chance(row["p"]),
                number(row, "ratio"),
                str(row["both"]),
            )
            for row in found["table"]["paired"]
        ],
        2,
    )
    told = "Lost and gained: problems that only the other, or only the first, solves. "
    yield f"{told}No p is corrected here.\n"


def cold(found: dict[str, Row]) -> Iterator[str]:
    """What a first use takes."""
    if "cold-start" not in found:
        return
    part = found["cold-start"]
    yield "## From an empty folder\n"
    yield table(
        ("command", "seconds", "memory of its largest process, MB"),
        [
            (f"`{line['command']}`", f"{line['seconds']:.0f}", str(line["peak_mb"]))
            for line in part["lines"]
        ],
    )
    yield f"Nothing fetched, converted or compiled before; {part['conditions']['cpus']} CPUs.\n"
