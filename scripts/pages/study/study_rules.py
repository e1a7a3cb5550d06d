"""The rules of the plan: which rows are surely longer, shorter, worse or better."""

from __future__ import annotations

from collections.abc import Sequence

from study_short_tables import is_primary
from study_words import Row, name_of, number

#: A p of no more lets something be said.
CHANCE = 0.05
#: Half a per cent is neither longer nor shorter.
LEAST_CHANGE = 0.02


def null_of(at: Row) -> Row | None:
    """The null's row of a level, if it was decoded."""
    return next((row for row in at["rows"] if row["role"] == "null"), None)


def side(one: Row, zero: float, null: Row | None = None) -> int:
    """1 where a whole interval lies above `zero` and above the null's, -1 below both, else 0."""
    low, high = one["low"], one["high"]
    if null is not None and null["low"] is not None and null["high"] is not None:
        above, below = max(zero, null["high"]), min(zero, null["low"])
    else:
        above = below = zero
    return int(low is not None and low > above) - int(high is not None and high < below)


def signed(
    rows: Sequence[Row], outcome: str, zero: float, null: Row | None = None
) -> tuple[list[Row], list[Row]]:
    """Rows whose outcome is surely above and surely below, by interval and corrected test.

    Args:
        rows: each against full attention.
        outcome: a name of theirs.
        zero: what is neither.
        null: whose interval must not be met.
    """
    other = None if null is None else null["against_full"][outcome]
    sure = [row for row in rows if row["against_full"][outcome].get("p_holm") is not None
            and row["against_full"][outcome]["p_holm"] <= CHANCE]  # fmt: skip
    sides = [(row, side(row["against_full"][outcome], zero, other)) for row in sure]
    return [row for row, at in sides if at > 0], [row for row, at in sides if at < 0]


def listed(rows: Sequence[Row], outcome: str | None = None, form: str = ".2f") -> str:
    """Names, each with its number, in brackets; nothing for none."""
    told = [name_of(row) if outcome is None else
            f"{name_of(row)} {number(row['against_full'][outcome], form)}"
            for row in rows]  # fmt: skip
    return f" ({'; '.join(told)})" if told else ""


def answers(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows that lose and that gain answers beyond chance: exact McNemar, Holm."""
    sure = [row for row in rows if row.get("p_holm") is not None and row["p_holm"] <= CHANCE]
    lost = [row for row in sure if row["lost"] > row["gained"]]
    return lost, [row for row in sure if row["gained"] > row["lost"]]


def span(numbers: Sequence[float], form: str = ".2f") -> str:
    """The least and the largest of some numbers."""
    least, most = (format(pick(numbers), form) for pick in (min, max))
    return least if least == most else f"{least} to {most}"


def methods(at: Row) -> list[Row]:
    """The methods' rows of a level."""
    return [row for row in at["rows"] if is_primary(row)]


def told_span(numbers: Sequence[float]) -> str:
    """Tokens a text, from the least to the largest; nothing for none."""
    return f", {span(numbers, '.0f')} a text" if numbers else ""


def lengths(at: Row, outcome: str) -> tuple[list[Row], list[Row], list[Row]]:
    """Rows with longer texts, those among them beyond the noise control, and shorter ones."""
    more, fewer = apart(methods(at), outcome)
    beyond, _ = signed(more, outcome, 1.0, null_of(at))
    return more, beyond, fewer


def apart(rows: Sequence[Row], outcome: str) -> tuple[list[Row], list[Row]]:
    """Rows whose ratio is surely above and below 1, and by `LEAST_CHANGE` at least."""
    more, fewer = signed(rows, outcome, 1.0)
    return (
        [row for row in more if row["against_full"][outcome]["estimate"] >= 1 + LEAST_CHANGE],
        [
            row
            for row in fewer
            if row["against_full"][outcome]["estimate"] <= 1 / (1 + LEAST_CHANGE)
        ],
    )
