"""What may be concluded from the study, by the rules of its plan: a sentence each, or silence.

Every sentence counts comparisons that a test, corrected for their number, or a whole interval
decides; where none does, the count is nought and the sentence says so. Held-out problems go through
the same rules, and stand behind each sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile

from pages import chance
from study_ending import detectors, known_answers
from study_rules import (
    CHANCE,
    answers,
    apart,
    lengths,
    listed,
    methods,
    null_of,
    side,
    signed,
    span,
    told_span,
)
from study_short_tables import METHODS, at_cap, level_of
from study_words import CHOSEN, HELD_OUT, WHY, Row, documents, name_of, number, percent

from experiments.report.statistics import holm, mcnemar, wilson

#: Of pooled shares, those are named that are surely above this.
SHOWN = 0.05
#: What is swapped in null worlds, and the sentence whose rule it is.
RULES = {
    "ratio_all": "(1)", "answers": "(1a)", "ratio_solved": "(1b)",
    "until_right": "(1c), before", "after_right": "(1c), after",
}  # fmt: skip
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


def length(at: Row) -> str:
    """Where both solve."""
    rows, outcome = methods(at), "ratio_solved"
    more, beyond, fewer = lengths(at, outcome)
    within = [row for row in rows if row["against_full"][outcome]["within"] and row not in more]
    silent = len(rows) - len(more) - len(fewer) - len([x for x in within if x not in fewer])
    return (
        f"Where both solve, they are longer in {len(more)} of {len(rows)}{listed(more, outcome)}, "
        f"in {len(beyond)} beyond the noise control{listed(beyond)}; shorter in "
        f"{len(fewer)}{listed(fewer, outcome)}; within 5% in "
        f"{len(within)}{listed(within, outcome)}; of {silent} nothing can be said."
    )


def correct(at: Row) -> str:
    """Answers lost and gained."""
    rows = [row["against_full"] | {"of": row} for row in methods(at)]
    lost, gained = answers(rows)
    noise = null_of(at)
    other = None if noise is None else noise["against_full"]["change"]
    beside = [one["of"] for one in lost if side(one["change"], 0.0, other) >= 0]
    told = ""
    if lost:
        points = [100 * (one["lost"] - one["gained"]) / one["n"] for one in lost]
        told = f", {span(points, '.0f')} points of accuracy"
    return (
        f"Answers are lost in {len(lost)} of {len(rows)}{told}, and gained in "
        f"{len(gained)}{listed([one['of'] for one in gained])}"
        + (f"; {len(beside)} lose no more than the noise control may{listed(beside)}"
           if beside else "")
        + "."
    )  # fmt: skip


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
        f"The right value is never stated where full attention states it more often than the other "
        f"way round in {len(never)} of {len(rows)}; where both state it: {'; '.join(told)}."
    )


def control(at: Row) -> str:
    """Full attention with noise."""
    row = null_of(at)
    if row is None:
        return "No noise control was decoded."
    one = row["against_full"]
    return (
        "The noise control is full attention with noise half the size of what it gives each token: "
        f"it reads every key, and is {number(one['ratio_all'])} times as long on all problems, "
        f"{number(one['ratio_solved'])} where both solve ({one['lost']} answers lost, "
        f"{one['gained']} gained, of {one['n']})."
    )


def free_budgets(at: Row) -> list[Row]:
    """The oracle's rows from the largest budget down to the last that costs nothing."""
    rows = sorted((row for row in at["rows"] if row["backend"] == "oracle"),
                  key=lambda row: -row["budget"])  # fmt: skip
    return [*takewhile(lambda row: row["budget"] in at["sparsity_free"], rows)]


def sparsity(at: Row) -> str:
    """How far down an oracle's choice costs nothing."""
    rows = [row for row in at["rows"] if row["backend"] == "oracle"]
    free = free_budgets(at)
    least = min(free, key=lambda row: row["budget"], default=None)
    told = "" if least is None else (
        f"; the least is {least['budget']} tokens, tokens "
        f"{number(least['against_full']['ratio_solved'], '.3f')}, "
        f"{least['against_full']['lost']} answers lost of {least['against_full']['solved_other']}"
    )  # fmt: skip
    return (
        "Reading only the keys of largest weight, which an oracle knows, costs nothing (tokens "
        f"within 5%, no more than 1% of solved problems lost, both by whole intervals) at "
        f"{len(free)} of {len(rows)} budgets, from the largest down{told}."
    )


def chosen_keys(at: Row) -> str:
    """Methods beside an oracle at the same budget."""
    rows: list[Row] = [{**one, "against_full": one} for one in at["selection"]]
    more, fewer = apart(rows, "ratio_solved")
    lost, gained = answers(rows)
    return (
        f"Beside an oracle at the same budget, {len(lost)} of {len(rows)} methods and budgets lose "
        f"answers{listed(lost)} and {len(gained)} gain some; where both solve, texts are longer in "
        f"{len(more)}{listed(more, 'ratio_solved')} and shorter in "
        f"{len(fewer)}{listed(fewer, 'ratio_solved')}."
    )


def beside_control(at: Row, name: str, words: str) -> str:
    """Methods beside a control at the same budget.

    Args:
        at: a level at a cap.
        name: of the comparisons.
        words: that say what is compared.
    """
    rows: list[Row] = [{**one, "against_full": one} for one in at[name]]
    if not rows:
        return ""
    lost, gained = answers(rows)
    more, fewer = apart(rows, "ratio_all")
    return (
        f"{words} at the same budget, {span([one['n'] for one in rows], 'd')} problems: of "
        f"{len(rows)} methods and budgets {len(gained)} solve more{listed(gained)} and {len(lost)} "
        f"fewer{listed(lost)}; on all problems texts are longer in "
        f"{len(more)}{listed(more, 'ratio_all')} and shorter in "
        f"{len(fewer)}{listed(fewer, 'ratio_all')}."
    )


def drawn_keys(at: Row) -> str:
    """Methods beside a random sample of tokens."""
    words = "Beside the first and newest tokens and a random sample of the others"
    return beside_control(at, "random", words)


def relatives(at: Row) -> str:
    """H2O beside its defect, and first tokens beside none."""
    uniform = "all tokens weighed alike above the budget (a defect of a public harness)"
    words = f"`h2o` beside {uniform}, and `sink` beside the newest tokens alone,"
    return beside_control(at, "relatives", words)


def prompt_kept(at: Row) -> str:
    """Methods with the prompt kept beside the same without, at the same budget."""
    rows: list[Row] = [{**one, "against_full": one} for one in at["prompt"]]
    if not rows:
        return ""
    lost, gained = answers(rows)
    more, fewer = apart(rows, "ratio_all")
    return (
        f"With the prompt kept at the same budget, {len(gained)} of {len(rows)} methods and "
        f"budgets gain answers{listed(gained)} and {len(lost)} lose some{listed(lost)}; on all "
        f"problems texts are shorter in {len(fewer)}{listed(fewer, 'ratio_all')} and longer in "
        f"{len(more)}{listed(more, 'ratio_all')}."
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
    return (
        f"Over the {one['cells']} cells, {one['texts']:,} texts, methods write "
        f"{number(one['longer'], '.0f')} tokens a text more than full attention on the same "
        f"problems. Of these are, where surely above {100 * SHOWN:.0f}%: "
        f"{'; '.join(more) or 'none'}. Classes that shrink: {'; '.join(fewer) or 'none'}."
    )


def cost(at: Row) -> str:
    """Cost per solved problem."""
    rows, told = methods(at), []
    for name, words in (("keys", "keys"), ("byte_steps", "memory x steps"), ("eflops", "eFLOPs")):
        sides = [side(row["against_full"]["per_solved_ratio"][name], 1.0) for row in rows]
        more = sum(at > 0 or not row["solved"] for at, row in zip(sides, rows, strict=True))
        told.append(f"{words}: less in {sides.count(-1)}, more in {more}")
    return (
        f"Of {len(rows)} cells, a solved problem costs less than under full attention, or more "
        f"(none solved is more), by whole intervals, in {'; '.join(told)}."
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
    "2": sparsity, "1": all_lengths, "1a": correct, "1b": length, "1c": until, "1d": control,
    "2a": chosen_keys, "2b": prompt_kept, "2c": drawn_keys, "2d": relatives,
    "4": excess, "5": cost, "5a": worth_it,
}  # fmt: skip


def answer(at: Row) -> str:
    """The question of the title, as far as the rules let it be answered."""
    free, rows = free_budgets(at), methods(at)
    lost, _ = answers([row["against_full"] for row in rows])
    longer, *_ = lengths(at, "ratio_all")
    if free and len(lost) == len(longer) == len(rows):
        return (
            "**With the right keys yes, with these methods and budgets no, on this small model: "
            f"an oracle that reads {min(row['budget'] for row in free)} keys a step costs nothing, "
            f"and all {len(rows)} cells of the methods write longer texts and lose answers.**"
        )
    return (
        f"**On this small model: an oracle costs nothing at {len(free)} budgets; of {len(rows)} "
        f"cells of the methods {len(longer)} write longer texts and {len(lost)} lose answers.**"
    )


def decoded(found: Row) -> str:
    """What these sentences rest on."""
    told = []
    for which, document in documents(found).items():
        for level, one in document["levels"].items():
            full = one["full"][str(max(document["caps"]))]["n"]
            told.append(f"`{level}`, {full} problems ({which})")
    return f"Decoded so far: {'; '.join(told)}."


def unharmed(at: Row) -> list[Row]:
    """The oracle's rows from the largest budget down to the last that loses no answer at all."""
    rows = sorted((row for row in at["rows"] if row["backend"] == "oracle"),
                  key=lambda row: -row["budget"])  # fmt: skip
    return [*takewhile(lambda row: not row["against_full"]["lost"]
                       and row["against_full"]["ratio_solved"]["within"], rows)]  # fmt: skip


def other_level(at: Row) -> str:
    """The counts of (1), (1a), (1b), (1c) and (2) on a level beside the first, in one sentence."""
    from scipy.stats import binomtest

    rows = methods(at)
    lost, gained = answers([row["against_full"] | {"of": row} for row in rows])
    everyone, beyond, shorter = lengths(at, "ratio_all")
    more, both_beyond, fewer = lengths(at, "ratio_solved")
    within = sum(row["against_full"]["ratio_solved"]["within"] for row in rows)
    after, _ = signed(rows, "after_right", 0.0)
    oracles = [row for row in at["rows"] if row["backend"] == "oracle"]
    free, least = unharmed(at), ""
    if free:
        n = free[-1]["against_full"]["solved_other"]
        most = 100 * binomtest(0, n).proportion_ci(method="exact").high
        least = f", the least {free[-1]['budget']} (0 of {n}: at most {most:.1f}%)"
    return (
        f"on all problems longer in {len(everyone)} of {len(rows)} cells ({len(beyond)} beyond the "
        f"noise control), shorter in {len(shorter)}; answers lost in {len(lost)}, gained in "
        f"{len(gained)}; where both solve longer in {len(more)}{listed(more, 'ratio_solved')}, "
        f"{len(both_beyond)} of them beyond the noise control, shorter in "
        f"{len(fewer)}{listed(fewer, 'ratio_solved')}, within 5% in {within}; more tokens after "
        f"the right value in {len(after)}; the oracle loses no answer and is within 5% at "
        f"{len(free)} of {len(oracles)} budgets{least}."
    )


def put_back(found: Row) -> str:
    """Whether the keys that a step missed most are why a text parts; nothing if it was not run."""
    one = found.get(WHY, {}).get("methods")
    if one is None:
        return ""
    missed, drawn = (one["healed"][f"1 {name}"] for name in ("most missed", "drawn"))
    p = mcnemar(one["only_missed"], one["only_drawn"])
    more = p <= CHANCE and one["only_missed"] > one["only_drawn"]
    beside = "more often than" if more else "which cannot be told apart from what happens"
    names = " and ".join(name for name in METHODS if found[WHY].get(name, {}).get("healed"))
    return (
        f"Of {missed['of']} texts of {names}, where each first parts from full attention's: with "
        "the key of each layer that the step missed most put back at the same budget, full "
        f"attention's token is chosen in {percent(missed)}%, {beside} with a key drawn at random, "
        f"{percent(drawn)}% (exact McNemar, p {chance(p)}). Texts then are as full attention's for "
        f"{one['agreed'] or 0:g} tokens (median), {one['to_the_end']} of them to the end."
    )


def other_levels(found: Row) -> Iterator[str]:
    """What the same cells do on the other levels, each corrected by itself."""
    for level, one in found[CHOSEN]["levels"].items():
        if level == level_of(found):
            continue
        at = at_cap(found, CHOSEN, level)
        assert at is not None
        n = one["full"][str(max(found[CHOSEN]["caps"]))]["n"]
        yield f"- (3) On `{level}`, {n} problems, half the budgets: {other_level(at)}"


def sentences(found: Row) -> Iterator[str]:
    """Every conclusion as a Markdown list, held-out problems behind each."""
    level = level_of(found)
    at, held = (at_cap(found, which, level) for which in (CHOSEN, HELD_OUT))
    assert at is not None
    yield f"{answer(at)} {decoded(found)}\n"
    for name, make in SENTENCES.items():
        told = make(at)
        if not told:  # nothing of the kind was decoded
            continue
        yield f"- ({name}) {told}"
        if held is not None:
            yield f"  - Held out: {make(held) or 'not decoded.'}"
    yield from other_levels(found)
    if told := put_back(found):
        yield f"- (4a) {told}"
    for name, tell in (("6", known_answers), ("6a", detectors)):
        yield f"- ({name}) {tell(found[CHOSEN], level)}"
        if held is not None:
            yield f"  - Held out: {tell(found[HELD_OUT], level)}"
    drawn = [one["null_worlds"] for one in found[CHOSEN]["levels"].values()]
    worlds, spoken = sum(one["worlds"] for one in drawn), []
    for rule, name in RULES.items():
        spoke = sum(one["spoke"][rule] for one in drawn)
        low, high = (100 * one for one in _wilson(spoke, worlds))
        spoken.append(f"{name} in {spoke} ({low:.0f} to {high:.0f}%)")
    yield (
        f"- Of {worlds} worlds in which each problem's two sides are swapped at random (on each of "
        f"{len(drawn)} levels as many), a rule speaks of any comparison, 5% being what it may: "
        f"{'; '.join(spoken)}."
    )


def _wilson(count: int, n: int) -> tuple[float, float]:
    found = wilson(count, n)
    return found.low or 0.0, found.high or 1.0


def section(found: Row) -> str:
    """All of them."""
    return "\n".join(sentences(found)) + "\n"
