"""What follows for somebody who deploys sparse attention: verdicts by rule, on both grounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import records
from pages import table
from study_rules import CHANCE, answers, side
from study_short_tables import METHODS, at_cap, is_primary, level_of
from study_words import CHOSEN, Row, name_of, number, percent

from experiments.report.statistics import holm, mcnemar

REAL = Path(__file__).parents[3] / "docs" / "real_models_results.json"
#: Points of accuracy that a cell which keeps the answers may lose, as a share.
KEPT = 0.05
#: The real model that is compared on answers.
GROUND = "Qwen2.5-Coder-1.5B, GSM8K"
EVICTING = ("h2o", "sink")
KEEPS, SAVES, DEAR = "keeps the answers", "costs fewer keys", "costs more keys"
LOSES, FEW = "loses answers", f"loses fewer than {100 * KEPT:.0f} points"
CONTROLS = ("oracle", "random")
ORDER = (*METHODS, *CONTROLS)


class Judged(NamedTuple):
    """A method at a budget: answers and keys per solved problem against full attention.

    `a_token` is keys read a token over full attention's, `p` of the answers (exact McNemar, Holm);
    a control is shown and not counted.
    """

    ground: str
    backend: str
    name: str
    change: Row
    keys: Row
    solved: int
    a_token: float
    p: float | None
    control: bool = False

    @property
    def loses(self) -> bool:
        """Whether it surely loses some."""
        return self.p is not None and self.p <= CHANCE and side(self.change, 0.0) < 0

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
            row["solved"], row["cost"]["keys"] / row["tokens"] / every,
            row["against_full"]["p_holm"], row["role"] == "control",
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
    p: dict[str, float] = {}
    for control in (False, True):  # families of their own
        some = [row for row in mine if (row["role"] == "control") == control]
        tested = holm([mcnemar(row["solved_lost"], row["solved_gained"]) for row in some])
        p |= dict(zip(map(_named, some), tested, strict=True))
    return [
        Judged(
            GROUND, row["backend"], _named(row),
            three(row, "accuracy_change"), three(row, "keys_read_per_solved_ratio"),
            round(row["accuracy"] * row["n"]), a_token(row), p[_named(row)],
            row["role"] == "control",
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
    counts = paragraph([one for one in cells if not one.control])
    return "\n".join((counts, beside_drawn(found), table(heads, lines, 2)))


def beside_drawn(found: Row) -> str:
    """Which cells solve more and fewer problems than a random sample of as many tokens."""
    at = at_cap(found, CHOSEN, level_of(found))
    assert at is not None
    lost, gained = answers(at["random"])
    told = {f"reasoner, {level_of(found)}": ([name_of(x) for x in gained],
                                             [name_of(x) for x in lost])}  # fmt: skip
    rows = [one for one in records.read(REAL)["table"]["paired"]
            if one["beside"] == "random" and one["method"] in METHODS
            and not one["keep_prompt"]]  # fmt: skip
    sure = [one for one, p in zip(rows, holm([one["p"] for one in rows]), strict=True)
            if p <= CHANCE]  # fmt: skip
    told[GROUND] = (
        [f"{x['method']} {x['budget']}" for x in sure if x["gained"] > x["lost"]],
        [f"{x['method']} {x['budget']}" for x in sure if x["lost"] > x["gained"]],
    )
    return "Beside a random sample of as many tokens (exact McNemar, Holm): " + "; ".join(
        f"{ground}, more are solved by {', '.join(more) or 'none'}, fewer by "
        f"{', '.join(fewer) or 'none'}"
        for ground, (more, fewer) in told.items()
    ) + ".\n"  # fmt: skip


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
        f"By whole intervals, and for lost answers a test as well (exact McNemar, Holm): {kinds}. "
        f"{len(good)} {'does' if len(good) == 1 else 'do'} both, keep the answers (fewer than "
        f"{100 * KEPT:.0f} points lost) and cost fewer keys{f': {names}' if good else ''}.\n"
    )
