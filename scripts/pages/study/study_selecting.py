"""Sentences on which keys are read: an oracle's, a method's, a random sample, the prompt."""

from __future__ import annotations

from itertools import takewhile

from study_lengths import a_token
from study_rules import answers, apart, lengths, listed, methods, null_of, signed, span
from study_words import Row, name_of, number


def oracles(at: Row) -> list[Row]:
    """The oracle's rows from the largest budget down."""
    rows = [row for row in at["rows"] if row["backend"] == "oracle"]
    return sorted(rows, key=lambda row: -row["budget"])


def free_budgets(at: Row) -> list[Row]:
    """The oracle's rows from the largest budget down to the last that costs nothing."""
    return [*takewhile(lambda row: row["budget"] in at["sparsity_free"], oracles(at))]


def at_most(n: int) -> float:
    """Per cent of n that may be lost where none was: the exact interval's end."""
    from scipy.stats import binomtest

    return 100 * float(binomtest(0, n).proportion_ci(method="exact").high)


def sparsity(at: Row) -> str:
    """How far down an oracle's choice costs nothing."""
    free, rows = free_budgets(at), oracles(at)
    words = (
        "Attending to the keys of largest weight alone, which an oracle finds by a look at all of "
        "them, costs nothing (tokens within 5%, no more than 1% of solved problems lost, by whole "
        "intervals; where fewer than six texts differ, by the most that may)"
    )
    below = [
        f"{row['budget']}: {row['against_full']['lost']} lost" for row in rows if row not in free
    ]
    smaller = f" At smaller ones: {'; '.join(below)}." if below else ""
    if not free:
        return f"{words} at none of {len(rows)} budgets.{smaller}"
    least, one = free[-1], free[-1]["against_full"]
    share = a_token(at, least)
    reads = f", {100 * share:.0f}% of what full attention reads" if share else ""
    return (
        f"{words} at {least['budget']} keys a step{reads}, and at the {len(free) - 1} larger "
        f"budgets: tokens {number(one['ratio_solved'], '.3f')}, {one['lost']} answers lost of "
        f"{one['solved_other']}.{smaller}"
    )


def chosen_keys(at: Row) -> str:
    """Methods beside an oracle at the same budget."""
    rows: list[Row] = [{**one, "against_full": one} for one in at["selection"]]
    more, fewer = apart(rows, "ratio_solved")
    lost, gained = answers(rows)
    budgets = {one["budget"] for one in rows}
    own = sum(row["against_full"]["lost"] for row in oracles(at) if row["budget"] in budgets)
    return (
        f"Beside an oracle at the same budget, {len(lost)} of {len(rows)} methods and budgets lose "
        f"answers and {len(gained)} gain some; where both solve, texts are longer in {len(more)} "
        f"and shorter in {len(fewer)}. At these budgets the oracle itself loses {own} answers."
    )


def prompt_kept(at: Row) -> str:
    """Methods with the prompt kept beside the same without, at the same budget."""
    every: list[Row] = [{**one, "against_full": one} for one in at["prompt"]]
    told = []
    for words, rows in (("methods", [one for one in every if one["backend"] != "random"]),
                        ("the control `random`",
                         [one for one in every if one["backend"] == "random"])):  # fmt: skip
        if not rows:
            continue
        lost, gained = answers(rows)
        more, fewer = apart(rows, "ratio_all")
        told.append(
            f"{words}, more solved at {len(gained)} of {len(rows)} budgets{solved(gained)}, fewer "
            f"at {len(lost)}{solved(lost)}, and on all problems shorter texts at "
            f"{len(fewer)}{listed(fewer, 'ratio_all')}, longer ones at "
            f"{len(more)}{listed(more, 'ratio_all')}"
        )
    if not told:
        return ""
    kept = [row for row in at["rows"] if row["kept"] and row["backend"] != "random"]
    lost, _ = answers([row["against_full"] | {"of": row} for row in kept])
    still = [one["of"] for one in lost]
    same = [row for row in kept if row not in still]
    return (
        f"With the prompt kept at the same budget, {span([one['n'] for one in every], 'd')} "
        f"problems: {'; '.join(told)}. Beside full attention {len(still)} of these {len(kept)} "
        f"methods and budgets still lose answers; of {len(same)} that cannot be told"
        + "".join(f" ({name_of(row)}: {row['against_full']['lost']} lost, "
                  f"{row['against_full']['gained']} gained)" for row in same)
        + "."
    )  # fmt: skip


def drawn_keys(at: Row) -> str:
    """Methods beside a random sample of tokens; lengths are not, since failures differ in kind."""
    rows: list[Row] = at["random"]
    if not rows:
        return ""
    lost, gained = answers(rows)
    return (
        "Beside as many tokens of which all but the first and newest are a random sample, "
        f"{span([one['n'] for one in rows], 'd')} problems: of {len(rows)} methods and budgets "
        f"{len(gained)} solve more and {len(lost)} fewer{solved(lost)}."
    )


def solved(rows: list[Row]) -> str:
    """Names, each with what it solves and what the other side does."""
    told = [f"{one['backend']} {one['budget']} {one['solved']} against {one['solved_other']}"
            for one in rows]  # fmt: skip
    return f" ({'; '.join(told)})" if told else ""


def worse_than_drawn(at: Row) -> list[str]:
    """Methods that solve fewer than a random sample at each of their budgets."""
    lost, _ = answers(at["random"])
    names = dict.fromkeys(one["backend"] for one in at["random"])
    return [
        name for name in names
        if all(one in lost for one in at["random"] if one["backend"] == name)
    ]  # fmt: skip


def first_tokens(at: Row) -> str:
    """What `sink` has beyond the newest tokens."""
    rows: list[Row] = [{**one, "against_full": one} for one in at["window"]]
    if not rows:
        return ""
    lost, gained = answers(rows)
    more, fewer = apart(rows, "ratio_all")
    each = "; ".join(f"{one['solved']} against {one['solved_other']}" for one in rows)
    return (
        f"The first tokens that `sink` has beyond the newest ones (`window`), "
        f"{span([one['n'] for one in rows], 'd')} problems: more are solved in {len(gained)} of "
        f"{len(rows)} budgets and fewer in {len(lost)} ({each}); on all problems texts are longer "
        f"in {len(more)} and shorter in {len(fewer)}."
    )


def uniform(at: Row) -> str:
    """H2O's defect."""
    rows = [row for row in at["rows"] if row["backend"] == "h2o_uniform"]
    if not rows:
        return ""
    n, right = (sum(row[name] for row in rows) for name in ("n", "solved"))
    cut = sum(row["ends"].get("cut", 0) for row in rows)
    return (
        "Where all tokens are weighed alike above the budget, a defect of a public harness's H2O "
        f"(`h2o_uniform`), {right} of {n} texts at {len(rows)} budgets are solved and {cut} are "
        "cut at the cap."
    )


def unharmed(at: Row) -> list[Row]:
    """The oracle's rows from the largest budget down to the last that loses no answer at all."""
    return [*takewhile(lambda row: not row["against_full"]["lost"], oracles(at))]


def other_level(at: Row) -> str:
    """The counts of (1), (1a), (1b), (1c) and (2) on a level beside the first, in one sentence."""
    rows = methods(at)
    lost, gained = answers([row["against_full"] | {"of": row} for row in rows])
    everyone, beyond, shorter = lengths(at, "ratio_all")
    more, both_beyond, fewer = lengths(at, "ratio_solved")
    within = sum(row["against_full"]["ratio_solved"]["within"] for row in rows)
    after, _ = signed(rows, "after_right", 0.0)
    safe = unharmed(at)
    least = "the oracle loses answers at every budget"
    if not oracles(at):
        least = "no oracle was decoded"
    if safe:
        n = safe[-1]["against_full"]["solved_other"]
        same = [*takewhile(lambda row: row["against_full"]["ratio_solved"]["within"], safe)]
        least = (
            f"the oracle loses no answer down to {safe[-1]['budget']} keys (0 of {n}: at most "
            f"{at_most(n):.1f}%), and is surely within 5% "
            + (f"down to {same[-1]['budget']}" if same else "nowhere")
        )
    noise = null_of(at) is not None
    apart_ = f"{len(beyond)} beyond the noise control" if noise else "no noise control was decoded"
    both = f", {len(both_beyond)} of them beyond the noise control" if noise else ""
    return (
        f"on all problems longer in {len(everyone)} of {len(rows)} cells ({apart_}), shorter in "
        f"{len(shorter)}; answers lost in {len(lost)}, gained in "
        f"{len(gained)}; where both solve longer in {len(more)}{listed(more, 'ratio_solved')}"
        f"{both}, shorter in "
        f"{len(fewer)}{listed(fewer, 'ratio_solved')}, within 5% in {within}; more tokens after "
        f"the right value in {len(after)}; {least}."
    )
