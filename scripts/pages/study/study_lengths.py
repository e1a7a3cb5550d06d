"""Sentences on how long texts are, how many are right, what the excess is and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from study_rules import (
    CHANCE,
    answers,
    lengths,
    listed,
    methods,
    null_of,
    side,
    signed,
    span,
    told_span,
)
from study_words import Row, name_of, number, percent

from experiments.report.statistics import holm, mcnemar

#: Of pooled shares, those are named that are surely above this.
SHOWN = 0.05
#: Points of accuracy that a cell which keeps the answers may lose, as a share.
KEPT = 0.05


def all_lengths(at: Row) -> str:
    """On all problems, solved or not."""
    rows, outcome = methods(at), "ratio_all"
    more, beyond, fewer = lengths(at, outcome)
    told = span([row["against_full"][outcome]["estimate"] for row in more]) if more else ""
    return (
        f"On all problems, solved or not, texts are longer than full attention's in {len(more)} of "
        f"{len(rows)} cells{f', {told} times' if told else ''}; in {len(beyond)} beyond what the "
        f"noise control does{listed(beyond, outcome)}; shorter in "
        f"{len(fewer)}{listed(fewer, outcome)}."
    )


def correct(at: Row) -> str:
    """Answers lost and gained, and how that is beside the noise control."""
    rows = [row["against_full"] | {"of": row} for row in methods(at)]
    lost, gained = answers(rows)
    told = beside = ""
    if lost:
        points = [100 * (one["lost"] - one["gained"]) / one["n"] for one in lost]
        told = f", {span(points, '.0f')} points of accuracy"
    noise = null_of(at)
    if lost and noise is not None:
        other = noise["against_full"]["change"]
        more = [one["of"] for one in lost if _below(one["change"], other)]
        fewer = [one["of"] for one in lost if _below(other, one["change"])]
        open_ = [one["of"] for one in lost if one["of"] not in [*more, *fewer]]
        beside = (
            f"; {len(more)} of these surely lose more than the noise control, {len(fewer)} surely "
            f"fewer{listed(fewer)}, of {len(open_)} it cannot be told{listed(open_)}"
        )
    return (
        f"Answers are lost in {len(lost)} of {len(rows)} cells{told}, and gained in "
        f"{len(gained)}{listed([one['of'] for one in gained])}{beside}."
    )


def _below(one: Row, other: Row) -> bool:
    """Whether one interval lies below another."""
    return one["high"] is not None and other["low"] is not None and one["high"] < other["low"]


def length(at: Row) -> str:
    """Where both solve, at the largest cap; and how many at smaller ones."""
    rows, outcome = methods(at), "ratio_solved"
    more, beyond, fewer = lengths(at, outcome)
    within = [row for row in rows if row["against_full"][outcome]["within"] and row not in more]
    silent = len(rows) - len(more) - len(fewer) - len([x for x in within if x not in fewer])
    caps = "".join(
        f" Read at {cap} times full attention's length, where texts that go on are cut: longer in "
        f"{len(lengths(other, outcome)[0])}, shorter in {len(lengths(other, outcome)[2])}."
        for cap, other in at.get("smaller", {}).items()
    )
    return (
        f"Where both solve, they are longer in {len(more)} of {len(rows)}{listed(more, outcome)}, "
        f"in {len(beyond)} beyond the noise control{listed(beyond)}; shorter in "
        f"{len(fewer)}{listed(fewer, outcome)}; within 5% in "
        f"{len(within)}{listed(within, outcome)}; of {silent} nothing can be said.{caps}"
    )


def until(at: Row) -> str:
    """Whether the right value is ever stated, and tokens before and behind it."""
    rows, told = methods(at), []
    changes = [(row["against_full"]["right_there_alone"], row["against_full"]["right_here_alone"])
               for row in rows]  # fmt: skip
    tested = holm([mcnemar(lost, gained) for lost, gained in changes])
    never = [row for row, p, (lost, gained) in zip(rows, tested, changes, strict=True)
             if p <= CHANCE and lost > gained]  # fmt: skip
    for outcome, words in (("until_right", "more tokens until it first stands in"),
                           ("after_right", "more tokens after it in")):  # fmt: skip
        more, fewer = signed(rows, outcome, 0.0)
        of = [row["against_full"][outcome]["estimate"] for row in more]
        beyond, _ = signed(more, outcome, 0.0, null_of(at))
        told.append(
            f"{words} {len(more)}{told_span(of)}"
            f" (beyond the noise control in {len(beyond)}), fewer in {len(fewer)}"
        )
    return (
        f"In {len(never)} of {len(rows)} cells more problems lose the right value altogether, so "
        f"that no text states it, than gain it; where both state it: {'; '.join(told)}."
    )


def control(at: Row) -> str:
    """Full attention with noise."""
    row = null_of(at)
    if row is None:
        return "No noise control was decoded."
    one = row["against_full"]
    return (
        "The noise control is full attention with noise half the size of what it gives each token, "
        "a default strength that is fitted to nothing: it reads every key, and is "
        f"{number(one['ratio_all'])} times as long on all problems, "
        f"{number(one['ratio_solved'])} where both solve ({one['lost']} answers lost, "
        f"{one['gained']} gained, of {one['n']})."
    )


def larger_budgets(at: Row) -> str:
    """Whether a method solves more with its next larger budget."""
    rows: Sequence[Row] = at["budgets"]
    lost, gained = answers(rows)
    told = [f"{name_of(one)}, {one['solved']} after {one['solved_other']}" for one in lost]
    return (
        f"With the next larger budget more problems are solved in {len(gained)} of {len(rows)} "
        f"steps, fewer in {len(lost)}{f' ({chr(59).join(told)})' if told else ''}."
    )


def excess(at: Row) -> str:
    """What the tokens beyond full attention's are."""
    one, noise = at["pooled"], null_of(at)
    if (one["longer"]["low"] or 0) <= 0:
        return (
            f"Over all methods' {one['texts']:,} texts it cannot be said that there are more tokens"
            f" than full attention's ({number(one['longer'], '.0f')} a text)."
        )
    beside = {} if noise is None else noise["against_full"]["excess"]
    whole = beside.get("tokens") or 0

    def said(name: str, part: Row) -> str:
        control = ""
        if whole > 0:
            control = f", under the noise control {100 * beside['by_class'][name] / whole:.0f}"
        return f"{name} {percent(part)}%{control}"

    parts = sorted(one["shares"].items(), key=lambda pair: -pair[1]["estimate"])
    more = [said(name, part) for name, part in parts if (part["low"] or 0) > SHOWN]
    fewer = [said(name, part) for name, part in parts
             if part["high"] is not None and part["high"] < -SHOWN]  # fmt: skip
    a_text = "" if noise is None else (
        f" (the noise control {whole / noise['against_full']['n']:.0f})"
    )  # fmt: skip
    return (
        f"Over the {one['cells']} cells, {one['texts']:,} texts, methods write "
        f"{number(one['longer'], '.0f')} tokens a text more than full attention on the same "
        f"problems{a_text}. Classes that surely make up more than {100 * SHOWN:.0f}% of them: "
        f"{'; '.join(more) or 'none'}. Classes that shrink: {'; '.join(fewer) or 'none'}."
    )


def cost(at: Row) -> str:
    """Cost per solved problem, beside full attention's and the noise control's."""
    rows, told, noise = methods(at), [], null_of(at)
    for name, words in (("keys", "keys"), ("byte_steps", "memory x steps"), ("eflops", "eFLOPs")):
        each = [row["against_full"]["per_solved_ratio"][name] for row in rows]
        other = None if noise is None else noise["against_full"]["per_solved_ratio"][name]
        sides = [side(one, 1.0) for one in each]
        none = [not row["solved"] for row in rows]
        more = sum(at > 0 or nought for at, nought in zip(sides, none, strict=True))
        beyond = sum(side(one, 1.0, other) > 0 or nought
                     for one, nought in zip(each, none, strict=True))  # fmt: skip
        told.append(f"{words} surely more in {more} ({beyond} beyond the noise control), fewer in "
                    f"{sides.count(-1)}")  # fmt: skip
    reads = [row for row in rows if a_token(at, row) >= 1]
    no_fewer = f" {len(reads)} read no fewer keys a token{listed(reads)}." if at.get("full") else ""
    return (
        f"Of {len(rows)} cells a solved problem costs, beside full attention: {'; '.join(told)}; "
        f"where none is solved, that is more.{no_fewer}"
    )


def a_token(at: Row, row: Row) -> float:
    """Keys read a token over full attention's; 0 where that is not known."""
    full = at.get("full")
    if not full or not row.get("tokens"):
        return 0.0
    return float(row["cost"]["keys"] / row["tokens"] / (full["cost"]["keys"] / full["tokens"]))


def worth_it(at: Row) -> str:
    """Cells that keep the answers, within a margin, and cost less."""
    found = []
    for row in methods(at):
        one = row["against_full"]
        low, high = one["change"]["low"], one["per_solved_ratio"]["keys"]["high"]
        if low is not None and low > -KEPT and high is not None and high < 1:
            keys, change = one["per_solved_ratio"]["keys"], percent(one["change"])
            found.append(f"{name_of(row)}: keys {number(keys)}, answers {change} points")
    return (
        f"Of {len(methods(at))} cells {len(found)} lose fewer than {100 * KEPT:.0f} points of "
        f"accuracy and cost fewer keys per solved problem, both by whole intervals"
        f"{': ' if found else ''}{'; '.join(found)}."
    )
