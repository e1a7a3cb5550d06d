"""What follows for somebody who deploys sparse attention: verdicts by rule, on both grounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import records
from pages import table
from study_rules import side
from study_short_tables import METHODS, at_cap, is_primary, level_of
from study_words import CHOSEN, Row, name_of, number, percent

REAL = Path(__file__).parents[3] / "docs" / "real_models_results.json"
#: Points of accuracy that a cell which keeps the answers may lose, as a share.
KEPT = 0.05
EVICTING = ("h2o", "sink")
KEEPS, SAVES, DEAR = "keeps the answers", "costs fewer keys", "costs more keys"
LOSES, FEW = "loses answers", f"loses fewer than {100 * KEPT:.0f} points"
CONTROLS = ("oracle", "random")
ORDER = (*METHODS, *CONTROLS)


class Judged(NamedTuple):
    """A method at a budget: answers and keys per solved problem against full attention.

    `a_token` is keys read a token over full attention's; a control is shown and not counted.
    """

    ground: str
    backend: str
    name: str
    change: Row
    keys: Row
    solved: int
    a_token: float
    control: bool = False

    @property
    def loses(self) -> bool:
        """Whether it surely loses some."""
        return side(self.change, 0.0) < 0

    @property
    def keeps(self) -> bool:
        """Whether it surely loses fewer than `KEPT`."""
        return self.change["low"] is not None and self.change["low"] > -KEPT

    @property
    def saves(self) -> bool:
        """Whether a solved problem surely costs fewer keys."""
        return bool(self.solved) and self.keys["high"] is not None and self.keys["high"] < 1

    @property
    def dear(self) -> bool:
        """Whether it surely costs more; none solved is more."""
        return (self.keys["low"] or 0) > 1 or not self.solved

    @property
    def verdict(self) -> str:
        """In words."""
        answers = (FEW if self.keeps else LOSES) if self.loses else KEEPS if self.keeps else ""
        said = (answers, SAVES if self.saves else DEAR if self.dear else "")
        return ", ".join(filter(None, said)) or "cannot be told"


def judged(found: Row) -> list[Judged]:
    """The methods' cells of the study's first level, and those of the real model."""
    at = at_cap(found, CHOSEN, level_of(found))
    assert at is not None
    mine = [row for row in at["rows"] if is_primary(row)]
    least = min(row["budget"] for row in mine)
    # Of the controls the one that knows most with least.
    mine += [row for row in at["rows"] if (row["backend"], row["budget"]) == ("oracle", least)]
    rows = sorted(mine, key=lambda row: (ORDER.index(row["backend"]), row["budget"]))
    document = found[CHOSEN]
    full = document["levels"][level_of(found)]["full"][str(max(document["caps"]))]
    every = full["cost"]["keys"] / full["tokens"]
    told = [
        Judged(
            f"reasoner, {level_of(found)}", row["backend"], _named(row),
            row["against_full"]["change"], row["against_full"]["per_solved_ratio"]["keys"],
            row["solved"], row["cost"]["keys"] / row["tokens"] / every, row["role"] == "control",
        )
        for row in rows
    ]  # fmt: skip
    return told + real()


def real() -> list[Judged]:
    """The cells of the real model that is compared on answers."""
    rows = records.read(REAL)["table"]["rows"]

    def three(row: Row, name: str) -> dict[str, Any]:
        return {"estimate": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]}

    def a_token(row: Row) -> float:
        keys = row["keys_read_per_solved_ratio"] * row["accuracy"] / full["accuracy"]
        return float(keys * full["mean_tokens"] / row["mean_tokens"])

    (full,) = (row for row in rows if row["backend"] == "full")
    mine = [
        row
        for row in rows
        if row["backend"] in ORDER and not row["backend_params"].get("keep_prompt")
    ]
    return [
        Judged(
            "Qwen2.5-Coder-1.5B, GSM8K", row["backend"], _named(row),
            three(row, "accuracy_change"), three(row, "keys_read_per_solved_ratio"),
            round(row["accuracy"] * row["n"]), a_token(row), row["role"] == "control",
        )
        for row in sorted(mine, key=lambda row: (ORDER.index(row["backend"]), row["budget"]))
    ]  # fmt: skip


def _named(row: Row) -> str:
    return name_of(row) + (", a control" if row["role"] == "control" else "")


def section(found: Row) -> str:
    """A paragraph and a table."""
    cells = judged(found)
    lines = [
        (one.ground, one.name, percent(one.change), number(one.keys), one.verdict) for one in cells
    ]
    heads = ("ground", "method and budget", "answers, points", "keys per solved problem", "verdict")
    return paragraph([one for one in cells if not one.control]) + "\n" + table(heads, lines, 2)


def paragraph(cells: Sequence[Judged]) -> str:
    """The counts that advice rests on."""
    good = [one for one in cells if one.keeps and one.saves]
    evicting = [one for one in cells if one.backend in EVICTING]
    choosing = [one for one in cells if one.backend not in EVICTING]
    kinds = "; ".join(
        f"{sum(one.keeps for one in some)} of {len(some)} cells that {what} keep the answers, "
        f"{sum(one.loses for one in some)} surely lose some"
        for what, some in (("choose among all keys", choosing), ("drop keys", evicting))
    )
    names = ", ".join(f"{one.name} ({one.ground})" for one in good)
    return (
        f"Of these {len(cells)} cells {sum(one.a_token < 1 for one in cells)} read fewer keys a "
        f"token than full attention; {sum(one.dear for one in cells)} read surely more keys per "
        f"solved problem, {sum(one.saves for one in cells)} surely fewer. "
        f"By whole intervals: {kinds}. "
        f"{len(good)} {'does' if len(good) == 1 else 'do'} both, keep the answers (fewer than "
        f"{100 * KEPT:.0f} points lost) and cost fewer keys{f': {names}' if good else ''}.\n"
    )
