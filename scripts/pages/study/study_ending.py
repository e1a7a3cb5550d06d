"""What ending texts earlier gives back: who knew the answer, and detectors with what follows."""

from __future__ import annotations

from study_rules import methods
from study_words import ACTIONS, Row, percent


def ceiling(at: Row, full: Row) -> str:
    """Who knew the answer; and what checks do to values."""
    one, rows = at["pooled"], methods(at)
    wrong, right = (sum(row[name] for row in rows) for name in ("right_to_wrong", "wrong_to_right"))
    return (
        f"Of the methods' {one['texts']:,} texts {percent(one['ever_right'])}% state the right "
        f"value at some point and {percent(one['solved'])}% are solved (full attention "
        f"{100 * full['ever_right'] / full['n']:.1f} and {percent(full['accuracy'])}). Checks "
        f"turn {wrong:,} right values wrong and {right:,} wrong ones right (full attention "
        f"{full['right_to_wrong']:,} and {full['wrong_to_right']:,} in {full['n']} texts). "
        f"Stopping at the first right value, which only who knows it can, would spare "
        f"{percent(one['ceiling_saved'])}% of their tokens, and {percent(full['ceiling_saved'])}% "
        "of full attention's."
    )


def known_answers(document: Row, level: str) -> str:
    """The same of a level at the largest cap."""
    cap = str(max(document["caps"]))
    return ceiling(document["levels"][level]["at"][cap], document["levels"][level]["full"][cap])


def detectors(document: Row, level: str) -> str:
    """Detectors within the bound of false stops, and the right answers that they cost."""
    every = [one for one in document["detectors"] if one["dataset"] == level]
    within = [one for one in every if one["same_bound"]]
    names = dict.fromkeys(one["detector"] for one in every)
    kept = dict.fromkeys(one["detector"] for one in within)
    told = []
    for action in ACTIONS:
        mine = [one for one in within if one["action"] == action]
        if not mine:
            continue
        told.append(f" Then {action}, {mine[0]['n']:,} texts: " + "; ".join(
            f"`{one['detector']}` {percent(one['saved'])}% of tokens, {one['lost']} of "
            f"{one['solved']} right answers lost, {one['gained']} gained" for one in mine
        ) + ".")  # fmt: skip
    return (
        f"Of {len(names)} detectors {len(kept)} stop no more than 1% of full attention's "
        f"{every[0]['of_full'] if every else 0} texts, by the upper bound. Of the methods' tokens "
        f"they spare{'' if told else ' nothing.'}{':' if told else ''}{''.join(told)}"
    )
