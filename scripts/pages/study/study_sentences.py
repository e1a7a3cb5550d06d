"""What may be concluded from the study, by the rules of its plan: a sentence each, or silence.

Every sentence counts comparisons that a test, corrected for their number, or a whole interval
decides; where none does, the count is nought and the sentence says so. Held-out problems go through
the same rules, and stand behind each sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from study_short_tables import at_cap, is_primary, level_of
from study_words import CHOSEN, HELD_OUT, Row, name_of, number, percent

#: A p of no more lets something be said.
CHANCE = 0.05
#: Of pooled shares, those are named that are surely above this.
SHOWN = 0.05
#: Points of accuracy that a cell which keeps the answers may lose, as a share.
KEPT = 0.05


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
    sure = [row for row in rows if (row["against_full"][outcome].get("p_holm") or 0) <= CHANCE]
    sides = [(row, side(row["against_full"][outcome], zero, other)) for row in sure]
    return [row for row, at in sides if at > 0], [row for row, at in sides if at < 0]


def listed(rows: Sequence[Row], outcome: str | None = None, form: str = ".2f") -> str:
    """Names, each with its number, in brackets; nothing for none."""
    told = [name_of(row) if outcome is None else
            f"{name_of(row)} {number(row['against_full'][outcome], form)}"
            for row in rows]  # fmt: skip
    return f" ({'; '.join(told)})" if told else ""


def answers(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows that lose and that gain answers beyond chance."""
    sure = [row for row in rows if (row.get("p_holm") or 0) <= CHANCE and row["p"] <= CHANCE]
    lost = [row for row in sure if row["lost"] > row["gained"]]
    return lost, [row for row in sure if row["gained"] > row["lost"]]


def methods(at: Row) -> list[Row]:
    """The methods' rows of a level."""
    return [row for row in at["rows"] if is_primary(row)]


def length(at: Row) -> str:
    """Where both solve."""
    rows = methods(at)
    said = {word: [row for row in rows if row["said"] == word]
            for word in ("longer", "shorter", "within 5%")}  # fmt: skip
    silent = len(rows) - sum(map(len, said.values()))
    return (
        f"Where both solve, at the largest cap, texts are longer than full attention's in "
        f"{len(said['longer'])} of {len(rows)} comparisons{listed(said['longer'], 'ratio_solved')},"
        f" shorter in {len(said['shorter'])}{listed(said['shorter'], 'ratio_solved')}, within 5% in"
        f" {len(said['within 5%'])}{listed(said['within 5%'], 'ratio_solved')}; of {silent} nothing"
        " can be said."
    )


def correct(at: Row) -> str:
    """Answers lost and gained."""
    rows, null = [row["against_full"] | {"of": row} for row in methods(at)], null_of(at)
    lost, gained = answers(rows)
    other = None if null is None else null["against_full"]["change"]
    # One that loses what noise on full attention loses as well is not said to lose.
    sides = {1: "gained", -1: "lost", 0: "no more than the null"}
    told: dict[str, list[Row]] = {word: [] for word in sides.values()}
    for one in (*lost, *gained):
        told[sides[side(one["change"], 0.0, other)]].append(one["of"])
    beside = told["no more than the null"]
    return (
        f"Answers are lost in {len(told['lost'])} of {len(rows)}{listed(told['lost'])} and gained "
        f"in {len(told['gained'])}{listed(told['gained'])}"
        + (f"; in {len(beside)} the null's interval is met{listed(beside)}" if beside else "")
        + "."
    )


def until(at: Row) -> str:
    """Tokens before and behind the first right value."""
    rows, null, told = methods(at), null_of(at), []
    for outcome, words in (("until_right", "until the right value first stands"),
                           ("after_right", "after it")):  # fmt: skip
        more, fewer = signed(rows, outcome, 0.0, null)
        told.append(
            f"more tokens {words} in {len(more)}{listed(more, outcome, '.0f')}, fewer in "
            f"{len(fewer)}{listed(fewer, outcome, '.0f')}"
        )
    return f"Of {len(rows)} comparisons, on all problems: {'; '.join(told)}."


def null(at: Row) -> str:
    """Full attention with noise."""
    row = null_of(at)
    if row is None:
        return "No null was decoded."
    one = row["against_full"]
    return (
        f"Full attention with noise half the size of what it gives each token, the null, is "
        f"{number(one['ratio_solved'], '.3f')} times as long where both solve ({one['lost']} "
        f"answers lost, {one['gained']} gained, of {one['n']})."
    )


def sparsity(at: Row) -> str:
    """How far down an oracle's choice costs nothing."""
    rows = [row for row in at["rows"] if row["backend"] == "oracle"]
    free = [row for row in rows if row["budget"] in at["sparsity_free"]]
    least = min(free, key=lambda row: row["budget"], default=None)
    told = "" if least is None else (
        f"; the least is {least['budget']} tokens, tokens "
        f"{number(least['against_full']['ratio_solved'], '.3f')}, "
        f"{least['against_full']['lost']} answers lost of {least['against_full']['solved_other']}"
    )  # fmt: skip
    return (
        "Reading only the keys of largest weight, which an oracle knows, costs nothing (tokens "
        f"within 5%, no more than 1% of problems lost, both by whole intervals) at {len(free)} of "
        f"{len(rows)} budgets{told}."
    )


def chosen_keys(at: Row) -> str:
    """Methods beside an oracle at the same budget."""
    rows: list[Row] = [{**one, "against_full": one} for one in at["selection"]]
    more, fewer = signed(rows, "ratio_solved", 1.0)
    lost, gained = answers(rows)
    return (
        f"Beside an oracle at the same budget, {len(lost)} of {len(rows)} methods and budgets lose "
        f"answers{listed(lost)} and {len(gained)} gain some; where both solve, texts are longer in "
        f"{len(more)}{listed(more, 'ratio_solved')} and shorter in "
        f"{len(fewer)}{listed(fewer, 'ratio_solved')}."
    )


def excess(at: Row) -> str:
    """What the tokens beyond full attention's are."""
    one = at["pooled"]
    if (one["longer"]["low"] or 0) <= 0:
        return (
            f"Over all methods' {one['texts']:,} texts it cannot be said that there are more tokens"
            f" than full attention's ({number(one['longer'], '.0f')} a text)."
        )
    named = sorted(
        ((name, part) for name, part in one["shares"].items() if (part["low"] or 0) > SHOWN),
        key=lambda pair: -pair[1]["estimate"],
    )
    told = "; ".join(f"{name} {percent(part)}%" for name, part in named)
    return (
        f"Over the {one['cells']} cells, {one['texts']:,} texts, methods write "
        f"{number(one['longer'], '.0f')} tokens a text more than full attention on the same "
        f"problems. Of these are, where surely above {100 * SHOWN:.0f}%: {told or 'none'}."
    )


def cost(at: Row) -> str:
    """Cost per solved problem."""
    rows, null, told = methods(at), null_of(at), []
    for name, words in (("keys", "keys"), ("byte_steps", "memory x steps"), ("eflops", "eFLOPs"),
                        ("seconds", "seconds on this processor")):  # fmt: skip
        less = more = 0
        other = None if null is None else null["against_full"]["per_solved_ratio"][name]
        for row in rows:
            at_side = side(row["against_full"]["per_solved_ratio"][name], 1.0, other)
            less += at_side < 0
            more += at_side > 0 or not row["solved"]
        told.append(f"{words}: less in {less}, more in {more}")
    return (
        f"Of {len(rows)} cells, a solved problem costs less than under full attention, or more "
        "(none solved is more), by whole intervals that do not meet the null's, in "
        f"{'; '.join(told)}."
    )


def ceiling(at: Row) -> str:
    """Who knew the answer."""
    one = at["pooled"]
    return (
        f"Of the methods' {one['texts']:,} texts {percent(one['ever_right'])}% state the right "
        f"value at some point and {percent(one['solved'])}% end with it; "
        f"{percent(one['ceiling_saved'])}% of their tokens come after it, which only who knows the "
        "answer could spare."
    )


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


SENTENCES: Mapping[str, Callable[[Row], str]] = {
    "1": length, "1a": correct, "1b": until, "1c": null, "2": sparsity, "2a": chosen_keys,
    "4": excess, "5": cost, "5a": worth_it, "6": ceiling,
}  # fmt: skip


def detectors(document: Row, level: str) -> str:
    """Detectors within the bound of false stops."""
    every = [one for one in document["detectors"] if one["dataset"] == level]
    within = [one for one in every if one["same_bound"]]
    told = [
        f"`{one['detector']}` then {one['action']}: {percent(one['saved'])}% of tokens, "
        f"{one['lost']} answers lost, {one['gained']} gained"
        for one in within
    ]  # fmt: skip
    return (
        f"Of {len(every)} detectors and actions {len(within)} stop no more than 1% of full "
        f"attention's texts that end, by the upper bound; of the methods' tokens they spare"
        f"{': ' if told else ' nothing'}{'; '.join(told)}."
    )


def sentences(found: Row) -> Iterator[str]:
    """Every conclusion as a Markdown list, held-out problems behind each."""
    level = level_of(found)
    at, held = (at_cap(found, which, level) for which in (CHOSEN, HELD_OUT))
    assert at is not None
    for name, make in SENTENCES.items():
        yield f"- ({name}) {make(at)}"
        if held is not None:
            yield f"  - Held out: {make(held)}"
    yield f"- (6a) {detectors(found[CHOSEN], level)}"
    if held is not None:
        yield f"  - Held out: {detectors(found[HELD_OUT], level)}"
    worlds = found[CHOSEN]["levels"][level]["null_worlds"]
    yield (
        f"- Of {worlds['worlds']} worlds in which each problem's two sides are swapped at random, "
        f"the rule of (1) speaks of any comparison in {worlds['spoke']}."
    )


def section(found: Row) -> str:
    """All of them."""
    return "\n".join(sentences(found)) + "\n"
