"""The study in a few lines for who has five minutes: the same counts and rules, no cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from study_ending import GAINED, LOST, verdict
from study_lengths import SHOWN
from study_rules import answers, lengths, methods, signed, span
from study_words import Row, percent

#: What a line begins with; it is not said twice.
HEADING = re.compile(r"^\*\*[^*]+\*\*[,:]? ?(right or wrong, )?")


def brief(
    at: Row,
    held: Row | None,
    penalties: Sequence[Row],
    recipes: Sequence[tuple[str, int, Row]] = (),
) -> Iterator[str]:
    """A line for each question; what problems held out say stands behind it.

    Args:
        at: the level of the primary comparisons.
        held: the same on problems held out.
        penalties: of that level.
        recipes: what models of other recipes are called, their problems, and the same of them.
    """
    for name, make in (("(1a)", lost), ("(1), (1b)", longer), ("(1c)", until), ("(4)", excess),
                       ("(2b)", drawn), ("(5)", cost), ("(6b)", trial)):  # fmt: skip
        told = make(at)
        if told:
            again = "" if held is None else HEADING.sub("", make(held))
            yield f"- {told}{f' Held out: {again}' if again else ''} {name}"
    if told := strongest(penalties):
        yield f"- {told} (6c)"
    for name, n, its in recipes:
        yield f"- {trained(name, n, its)} (3a)"


def lost(at: Row) -> str:
    """Answers."""
    rows = [row["against_full"] for row in methods(at)]
    less, more = answers(rows)
    points = [100 * (one["lost"] - one["gained"]) / one["n"] for one in less]
    told = f", {span(points, '.0f')} points of accuracy" if less else ""
    return (
        f"**Answers** are lost in {len(less)} of {len(rows)} cells{told}, and gained in "
        f"{len(more)}."
    )


def longer(at: Row) -> str:
    """Lengths."""
    told = []
    for outcome, words in (("ratio_all", "on all problems"), ("ratio_solved", "where both solve")):
        more, _, fewer = lengths(at, outcome)
        times = [row["against_full"][outcome]["estimate"] for row in more]
        told.append(
            f"{words} longer in {len(more)}{f' ({span(times)} times)' if more else ''}, shorter in "
            f"{len(fewer)}"
        )
    return f"**Texts** are, of {len(methods(at))} cells, {'; '.join(told)}."


def until(at: Row) -> str:
    """Before and after the right value."""
    rows = methods(at)
    before, _ = signed(rows, "until_right", 0.0)
    after, _ = signed(rows, "after_right", 0.0)
    return (
        f"**When**: where both state the right value, more tokens before it first stands in "
        f"{len(before)} of {len(rows)} cells, more tokens after it in {len(after)}."
    )


def excess(at: Row) -> str:
    """What is written more."""
    one = at["pooled"]
    if (one["longer"]["low"] or 0) <= 0:
        return (
            "**What is written more** cannot be said: over all cells texts are not surely longer."
        )
    parts = sorted(one["shares"].items(), key=lambda pair: -pair[1]["estimate"])
    told = [f"{name} {percent(part)}%" for name, part in parts if (part["low"] or 0) > SHOWN]
    return f"**What is written more** is above all {', '.join(told) or 'nothing in particular'}."


def drawn(at: Row) -> str:
    """Beside a random sample; nothing where none was decoded."""
    if not at["random"]:
        return ""
    less, more = answers(at["random"])
    return (
        f"**A random sample** of as many tokens solves fewer problems than {len(more)} of "
        f"{len(at['random'])} cells and more than {len(less)}."
    )


def cost(at: Row) -> str:
    """Keys per solved problem."""
    rows = methods(at)
    keys = [row["against_full"]["per_solved_ratio"]["keys"] for row in rows]
    dear = sum((one["low"] or 0) > 1 or not row["solved"]
               for one, row in zip(keys, rows, strict=True))  # fmt: skip
    cheap = sum(one["high"] is not None and one["high"] < 1 for one in keys)
    return (
        f"**Keys read per solved problem** are surely more than full attention's in {dear} of "
        f"{len(rows)} cells, fewer in {cheap}."
    )


def trial(at: Row) -> str:
    """Texts that end with the first value."""
    one, pooled, whole = (
        at["pooled"]["ended_at_first"],
        at["pooled"],
        at["full"]["ended_at_first"],
    )
    heading = {GAINED: "would give answers back", LOST: "would lose more answers"}.get(
        verdict(one), "is not told apart in answers"
    )
    return (
        f"**Ending at the first value stated**, right or wrong, {heading}: "
        f"{percent(one['solved'])}% of texts solved instead of {percent(pooled['solved'])}%, with "
        f"{percent(one['saved'])}% fewer tokens (full attention: {whole['lost']} lost, "
        f"{whole['gained']} gained)."
    )


def strongest(rows: Sequence[Row]) -> str:
    """Penalties; nothing where none has texts of both sides."""
    rows = [one for one in rows if one["n"] and one["full"]["n"]]
    if not rows:
        return ""
    within = [one for one in rows if one["same_bound"]]
    gain, loss = ([one for one in within if verdict(one) == said] for said in (GAINED, LOST))
    spared = [f"`{one['penalty']}` {percent(one['saved'])}%" for one in within
              if (one["saved"]["low"] or 0) > 0]  # fmt: skip
    return (
        f"**Penalties**: {len(within)} of {len(rows)} leave full attention its answers; on the "
        f"methods' texts {len(gain)} of these surely gain answers, {len(loss)} surely lose some, "
        f"and {len(spared)} surely spare tokens{': ' if spared else ''}{', '.join(spared)}."
    )


def trained(name: str, n: int, at: Row) -> str:
    """Answers and lengths of a model of another recipe."""
    rows = methods(at)
    less, more = answers([row["against_full"] for row in rows])
    longer, _, shorter = lengths(at, "ratio_all")
    return (
        f"**A model trained {name}** ([what that is](#3-what-was-arranged)), {n} problems: answers "
        f"are lost in {len(less)} of {len(rows)} cells and gained in {len(more)}; texts are, on "
        f"all problems, longer in {len(longer)} and shorter in {len(shorter)}."
    )
