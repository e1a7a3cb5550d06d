"""What ending texts earlier gives back, and what putting keys back does."""

from __future__ import annotations

from pages import chance
from study_rules import CHANCE, methods, null_of, span
from study_short_tables import METHODS
from study_words import ACTIONS, WHY, Row, percent

from experiments.report.statistics import mcnemar

#: What may be said where answers change.
GAINED, LOST, OPEN = "surely more gained", "surely more lost", "which cannot be told apart"


def known_answers(at: Row) -> str:
    """The first value stated, what checks do to values, and who knew the answer."""
    one, full, noise = at["pooled"], at["full"], null_of(at)
    beside = "" if noise is None else (
        f"; under the noise control {100 * noise['first_is_right'] / noise['n']:.1f}% and "
        f"{percent(noise['accuracy'])}%"
    )  # fmt: skip
    (wrong, of_full), (right, full_right) = (
        one[name] for name in ("right_to_wrong", "wrong_to_right")
    )
    return (
        f"Of the methods' {one['texts']:,} texts the first value stated is right in "
        f"{percent(one['first_right'])}%, {percent(one['solved'])}% are solved, and "
        f"{percent(one['ever_right'])}% state the right value at some point (under full attention "
        f"the first is right in {100 * full['first_is_right'] / full['n']:.1f}% and "
        f"{percent(full['accuracy'])}% are solved{beside}). Checks turn {wrong:,} right values "
        f"wrong, in {percent(one['harmed'])}% of texts, and {right:,} wrong ones right (full "
        f"attention {of_full:,} and {full_right:,} on the same problems, each as often as there "
        f"are cells). Stopping at the first right value, which only who knows it can, would spare "
        f"{percent(one['ceiling_saved'])}% of tokens, and {percent(full['ceiling_saved'])}% of "
        "full attention's."
    )


def detectors(every: list[Row], at: Row) -> str:
    """Detectors within the bound of false stops, by what follows.

    Args:
        every: rows of a level.
        at: of the level, at the largest cap.
    """
    within = [one for one in every if one["same_bound"]]
    names = dict.fromkeys(one["detector"] for one in every)
    kept = dict.fromkeys(one["detector"] for one in within)
    told = [_followed(action, [one for one in within if one["action"] == action])
            for action in ACTIONS]  # fmt: skip
    return (
        f"Of {len(names)} detectors {len(kept)} stop no more than 1% of full attention's "
        f"{every[0]['of_full'] if every else 0} texts, by the upper bound."
        f"{''.join(told)}{shorter_cap(at)}"
    )


def _followed(action: str, rows: list[Row]) -> str:
    if not rows:
        return ""
    sure = [one for one in rows if one["p_holm"] <= CHANCE]
    gain = [one for one in sure if one["gained"] > one["lost"]]
    loss = [one for one in sure if one["gained"] < one["lost"]]
    names = f" (`{'`, `'.join(one['detector'] for one in gain)}`)" if gain else ""
    spared = [100 * one["saved"]["estimate"] for one in rows]
    return (
        f" Then {action}, {rows[0]['n']:,} texts: they spare {span(spared, '.0f')}% of tokens; of "
        f"{rows[0]['solved']:,} right answers {span([one['lost'] for one in rows], 'd')} are lost, "
        f"{span([one['gained'] for one in rows], 'd')} gained; surely more are gained than lost by "
        f"{len(gain)} of {len(rows)}{names}, surely more lost than gained by {len(loss)}."
    )


def shorter_cap(at: Row) -> str:
    """What cutting every text does, for comparison."""
    told = []
    for cap, other in at.get("smaller", {}).items():
        tokens, less = (sum(row["tokens"] for row in methods(one)) for one in (at, other))
        right, fewer = (sum(row["solved"] for row in methods(one)) for one in (at, other))
        told.append(f"at {cap} times {100 * (1 - less / tokens):.0f}%, {right - fewer:,} lost")
    if not told:
        return ""
    texts = sum(row["n"] for row in methods(at))
    return (
        " For comparison, cutting every text at some times full attention's length, which has to "
        f"be known, spares tokens and loses right answers, of all {texts:,} texts: "
        f"{'; '.join(told)}."
    )


def trial_answers(at: Row) -> str:
    """What a reader reaches who sees that a value is stated, and not whether it is right."""
    one, whole = at["pooled"]["ended_at_first"], at["full"]["ended_at_first"]
    return (
        "A trial answer right after the goal's value is first stated shows that value, and not "
        f"whether it is right. Of {one['texts']:,} texts, {one['reached']:,} of which state one, "
        f"{percent(one['solved'])}% would be solved if they ended there, instead of "
        f"{percent(at['pooled']['solved'])}%, with {percent(one['saved'])}% fewer tokens: "
        f"{one['lost']:,} answers lost and {one['gained']:,} gained, {verdict(one)}. Under full "
        f"attention {whole['lost']} of {whole['texts']} would be lost and {whole['gained']} "
        f"gained, {verdict(whole)}, with {percent(whole['saved'])}% fewer tokens."
    )


def verdict(one: Row) -> str:
    """Whether answers are surely gained or lost, by the test of problems."""
    p = one["p_holm"] if "p_holm" in one else one["p"]
    if p is None or p > CHANCE or one["gained"] == one["lost"]:
        return OPEN
    return GAINED if one["gained"] > one["lost"] else LOST


def penalties(rows: list[Row]) -> str:
    """Penalties that spare full attention's answers, and what all of them do; nothing for none.

    Args:
        rows: of a level; those of which either side has no texts are left out.
    """
    rows = [one for one in rows if one["n"] and one["full"]["n"]]
    if not rows:
        return ""
    within = [one for one in rows if one["same_bound"]]
    told = []
    for one in rows:
        honest, (now, before) = one["full"], one["loops"]
        told.append(
            f"`{one['penalty']}` spares {percent(one['saved'])}% of tokens, loses {one['lost']} of "
            f"{one['solved']} right answers and gains {one['gained']}, {verdict(one)}, and {now} "
            f"instead of {before} of {one['n']} texts end in a loop (full attention: "
            f"{honest['lost']} of {honest['solved']} lost, at most "
            f"{100 * honest['lost_high']:.1f}%)"
        )
    names = f" (`{'`, `'.join(one['penalty'] for one in within)}`)" if within else ""
    return (
        f"Of {len(rows)} penalties {len(within)} lose no more than 1% of full attention's answers, "
        f"by the upper bound{names}. On the methods' texts at their middle budgets: "
        f"{'; '.join(told)}."
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
        f"Of {missed['of']} texts of {names}, drawn among those that part from full attention's, "
        "at the first token where they do: with the key of each layer that the step missed most "
        "put back at the same budget, full attention's token is chosen in "
        f"{percent(missed)}%, {beside} with a key drawn at random, {percent(drawn)}% (exact "
        f"McNemar, p {chance(p)}). Decoded on, the texts are as full attention's for "
        f"{one['agreed'] or 0:g} tokens (median) before they part again; {one['to_the_end']} do "
        "not: one key at the first parting mends the token, and seldom the text."
    )
