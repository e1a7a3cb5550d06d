"""What may be concluded from the study, by the rules of its plan: a sentence each, or silence.

Every sentence counts comparisons that a test, corrected for their number, or a whole interval
decides; where none does, the count is nought and the sentence says so. Held-out problems go through
the same rules, and stand behind each sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import study_lengths
from study_brief import brief
from study_ending import detectors, known_answers, penalties, put_back, trial_answers
from study_rules import CHANCE, answers, lengths, methods
from study_selecting import (
    at_most,
    chosen_keys,
    drawn_keys,
    first_tokens,
    free_budgets,
    other_level,
    prompt_kept,
    sparsity,
    uniform,
    worse_than_drawn,
)
from study_short_tables import at_cap, level_of
from study_words import (
    ACTIONS,
    CHOSEN,
    HELD_OUT,
    VARIANTS,
    Row,
    cell_of,
    documents,
    name_of,
    percent,
)

from experiments.report.statistics import holm, wilson

#: Shares that are less apart are not told; of a 95% interval, its half in standard errors.
POINT, Z = 0.01, 1.959964
#: What is swapped in null worlds, and the sentence whose rule it is.
RULES = {
    "ratio_all": "(1)", "answers": "(1a)", "ratio_solved": "(1b)",
    "until_right": "(1c), before", "after_right": "(1c), after",
}  # fmt: skip
SENTENCES: Mapping[str, Callable[[Row], str]] = {
    "1": study_lengths.all_lengths, "1a": study_lengths.correct, "1b": study_lengths.length,
    "1c": study_lengths.until, "1d": study_lengths.control, "1e": study_lengths.larger_budgets,
    "2": sparsity, "2a": chosen_keys, "2b": drawn_keys, "2c": first_tokens, "2d": prompt_kept,
    "2e": uniform, "4": study_lengths.excess, "5": study_lengths.cost,
    "5a": study_lengths.worth_it, "6": known_answers,
}  # fmt: skip
NOT_DECODED = "(Not decoded on the problems held out.)"


def view(found: Row, which: str, level: str) -> Row | None:
    """A level at its largest cap, with full attention's row and the level at smaller caps."""
    at = at_cap(found, which, level)
    if at is None:
        return None
    document = found[which]
    *smaller, cap = sorted(document["caps"])
    return {
        **at,
        "full": document["levels"][level]["full"][str(cap)],
        "smaller": {one: at_cap(found, which, level, one) for one in smaller},
    }


def answer(at: Row) -> str:
    """The question of the title, as far as the rules let it be answered."""
    free, rows = free_budgets(at), methods(at)
    lost, _ = answers([row["against_full"] for row in rows])
    longer, beyond, _ = lengths(at, "ratio_all")
    told = (
        f"On this small model {len(lost)} of {len(rows)} cells (a method at a budget) lose answers "
        f"and {len(longer)} write longer texts, {len(beyond)} of them longer than under noise that "
        "takes no key away."
    )
    if free and len(lost) == len(rows):
        least, one = free[-1]["budget"], free[-1]["against_full"]
        bound = "" if one["lost"] else f", at most {at_most(one['solved_other']):.1f}%"
        told += (
            f" It is not how few keys are read, but which: of the keys of largest weight, which "
            f"only a look at all of them finds, {least} a step lose {one['lost']} of "
            f"{one['solved_other']} answers{bound}, and lengths stay within 5%."
        )
    if worse := worse_than_drawn(at):
        told += (
            f" {', '.join(f'`{name}`' for name in worse)} solves fewer problems than a random "
            "sample of as many tokens, at each of its budgets."
        )
    return f"**{told}**"


def decoded(found: Row) -> str:
    """What these sentences rest on."""
    told = []
    for which, document in documents(found).items():
        for level, one in document["levels"].items():
            full = one["full"][str(max(document["caps"]))]["n"]
            told.append(f"`{level}`, {full} problems ({which})")
    return f"Decoded: {'; '.join(told)}. Where no level is named it is `{level_of(found)}`."


def other_levels(found: Row) -> Iterator[str]:
    """What the same cells do on the other levels, each corrected by itself."""
    for level, one in found[CHOSEN]["levels"].items():
        if level == level_of(found):
            continue
        at = at_cap(found, CHOSEN, level)
        assert at is not None
        n = one["full"][str(max(found[CHOSEN]["caps"]))]["n"]
        yield f"- (3) On `{level}`, {n} problems, half the budgets: {other_level(at)}"


def penalties_of(found: Row, which: str, level: str) -> list[Row]:
    """What a document tells of penalties on a level."""
    return [one for one in found[which]["penalties"] if one["dataset"] == level]


def recipes(found: Row) -> Iterator[tuple[str, int, Row]]:
    """Models of other recipes: what each is called, problems, and what is said at the largest
    cap."""
    level = level_of(found)
    for name, document in found.get(VARIANTS, {}).items():
        at = at_cap({name: document}, name, level)
        assert at is not None
        yield name, document["levels"][level]["full"][str(max(document["caps"]))]["n"], at


def other_recipes(found: Row) -> Iterator[str]:
    """What models of other recipes do, and which classes of tokens they surely have more or less
    of."""
    level = level_of(found)
    shipped = at_cap(found, CHOSEN, level)
    assert shipped is not None
    for name, n, at in recipes(found):
        yield f"- (3a) Trained {name}, {n} problems: {other_level(at)} {class_shares(at, shipped)}"


def class_shares(at: Row, shipped: Row) -> str:
    """Classes of which two models' additional tokens surely have other shares."""
    if any((one["pooled"]["longer"]["low"] or 0) <= 0 for one in (at, shipped)):
        return "What the additional tokens are cannot be compared: one of them has none for sure."
    ours, its = (one["pooled"]["shares"] for one in (at, shipped))
    tested = {name: _apart(ours[name], its[name]) for name in ours if name in its}
    known = {name: p for name, p in tested.items() if p is not None}
    sure = [name for name, p in zip(known, holm([*known.values()]), strict=True) if p <= CHANCE]
    differ = [name for name in sure if abs(ours[name]["estimate"] - its[name]["estimate"]) >= POINT]
    told = [f"{name} {percent(ours[name])}% (as it ships {percent(its[name])}%)" for name in differ]
    rest = len(ours) - len(differ)
    return (
        f"Of {len(ours)} classes of tokens beyond full attention's, {len(differ)} surely have "
        f"another share than in the model that ships, by a point at least (Holm)"
        f"{': ' if told else ''}{'; '.join(told)}; of {rest} that is not said."
    )


def _apart(one: Row, other: Row) -> float | None:
    """p of two numbers that are known by 95% intervals alone, as if both were normal."""
    if None in (one["low"], other["low"]):
        return None
    error = math.hypot(one["high"] - one["low"], other["high"] - other["low"]) / (2 * Z)
    apart = abs(one["estimate"] - other["estimate"])
    return math.erfc(apart / error / math.sqrt(2)) if error else float(apart == 0)


def verdicts(at: Row) -> dict[str, dict[str, str]]:
    """What the rules of (1), (1a) and (1b) say of each cell; nothing where they are silent."""
    found: dict[str, dict[str, str]] = {}
    for rule, outcome in (("(1)", "ratio_all"), ("(1b)", "ratio_solved")):
        more, _, fewer = lengths(at, outcome)
        found[rule] = {
            name_of(row): "longer" if row in more else "shorter" if row in fewer
            else "within 5%" if row["against_full"][outcome]["within"] else "nothing"
            for row in methods(at)
        }  # fmt: skip
    rows = [row["against_full"] | {"cell": cell_of(row)} for row in methods(at)]
    lost, gained = ([one["cell"] for one in some] for some in answers(rows))
    found["(1a)"] = {
        name_of(row): "lost" if cell_of(row) in lost else "gained" if cell_of(row) in gained
        else "nothing"
        for row in methods(at)
    }  # fmt: skip
    return found


def differences(at: Row, held: Row) -> str:
    """Cells of which the rules say something else on the problems held out."""
    ours, its = verdicts(at), verdicts(held)
    told = [
        f"{rule} of {name} says {said} and, held out, {its[rule][name]}"
        for rule in sorted(ours)
        for name, said in ours[rule].items()
        if its[rule].get(name, said) != said
    ]
    count = sum(len(some) for some in ours.values())
    return (
        f"Of these {count} verdicts of (1), (1a) and (1b), {len(told)} are not the same on the "
        f"problems held out{': ' if told else ''}{'; '.join(told)}."
    )


def sentences(found: Row) -> Iterator[str]:
    """Every conclusion as a Markdown list, held-out problems behind each."""
    level = level_of(found)
    at, held = (view(found, which, level) for which in (CHOSEN, HELD_OUT))
    assert at is not None
    for name, make in SENTENCES.items():
        told = make(at)
        if not told:  # nothing of the kind was decoded
            continue
        yield f"- ({name}) {told}"
        if held is not None:
            again = make(held)
            yield f"  - Held out: {again}" if again else f"  - {NOT_DECODED}"
        if name == "1b" and held is not None:
            yield f"- {differences(at, held)}"
        if name == "2e":
            yield from other_levels(found)
            yield from other_recipes(found)
        if name == "4" and (healed := put_back(found)):
            yield f"- (4a) {healed}"
    for which, view_of in ((CHOSEN, at), (HELD_OUT, held)):
        if view_of is not None:
            rows = [one for one in found[which]["detectors"] if one["dataset"] == level]
            begin = "- (6a)" if which == CHOSEN else "  - Held out:"
            yield f"{begin} {detectors(rows, view_of)}{not_followed(found, which, level)}"
    yield f"- (6b) {trial_answers(at)}"
    if held is not None:
        yield f"  - Held out: {trial_answers(held)}"
    if told := penalties(penalties_of(found, CHOSEN, level)):
        yield f"- (6c) {told}"
        if held is not None:
            again = penalties(penalties_of(found, HELD_OUT, level))
            yield f"  - Held out: {again}" if again else f"  - {NOT_DECODED}"
    yield null_sentence(found)


def not_followed(found: Row, which: str, level: str) -> str:
    """Actions that were decoded on the chosen problems and not on these."""
    chosen, here = (
        {one["action"] for one in found[name]["detectors"] if one["dataset"] == level}
        for name in (CHOSEN, which)
    )
    missing = [action for action in ACTIONS if action in chosen - here]
    return f" (`{'`, `'.join(missing)}`: not decoded on these.)" if missing else ""


def null_sentence(found: Row) -> str:
    """How often the rules speak where there is nothing."""
    drawn = {level: one["null_worlds"] for level, one in found[CHOSEN]["levels"].items()}
    worlds = sum(one["worlds"] for one in drawn.values())
    spoken = []
    for rule, name in RULES.items():
        each = [one["spoke"][rule] for one in drawn.values()]
        low, high = (100 * one for one in _wilson(sum(each), worlds))
        counts = " + ".join(map(str, each)) if len(each) > 1 else str(sum(each))
        spoken.append(f"{name} {counts} ({low:.0f} to {high:.0f}%)")
    return (
        f"- How often a rule claims something where there is nothing, in {worlds} worlds in which "
        f"each problem's two sides are swapped at random, on {', '.join(drawn)} (5% is allowed): "
        f"{'; '.join(spoken)}."
    )


def _wilson(count: int, n: int) -> tuple[float, float]:
    found = wilson(count, n)
    return found.low or 0.0, found.high or 1.0


def section(found: Row) -> str:
    """All of them."""
    return "\n".join(sentences(found)) + "\n"


def short(found: Row) -> str:
    """The answer to the title's question and a line for each other."""
    level = level_of(found)
    at, held = (view(found, which, level) for which in (CHOSEN, HELD_OUT))
    assert at is not None
    lines = brief(at, held, penalties_of(found, CHOSEN, level), [*recipes(found)])
    return f"{answer(at)}\n\n" + "\n".join(lines) + f"\n\n{decoded(found)}\n"
