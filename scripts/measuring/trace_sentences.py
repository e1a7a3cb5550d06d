"""Tables and sentences over what `trace_readings.py` counts; no sentence without its count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

#: Tables of the page: title, and of each column its heading and the field of a row.
TABLES: Mapping[str, Mapping[str, str]] = {
    "Answers": {
        "outputs": "n",
        "solved": "solved",
        "first stated right": "first_right",
        "last stated right": "last_right",
        "ever right": "ever_right",
        "right first, then lost": "first_gained",
        "won later": "first_lost",
        "p": "first_p",
        "first right at": "right_at",
    },
    "Outputs that are not solved": {
        "cut": "cut",
        "gave up": "gave_up",
        "wrong": "wrong",
        "once right": "once_right",
        "W, cut": "wasted_cut",
        "W, ended": "wasted_ended",
        "L in W, cut": "loops_in_wasted_cut",
        "T in W, cut": "tails_in_wasted_cut",
    },
    "Values and checks": {
        "right to wrong": "right_to_wrong",
        "wrong to right": "wrong_to_right",
        "wrong to wrong": "wrong_to_wrong",
        "outputs with a wrong value": "with_wrong",
        "with a check that disagrees": "with_disagreement",
        "with a fact misread": "with_misread",
        "with a settled value not known": "with_forgotten",
    },
}
#: Kinds of lines that a sentence names, those with most tokens.
SHOWN = 5
DETECTORS: Mapping[str, str] = {
    "fired": "fired",
    "W spared, cut": "spared_cut",
    "of": "wasted_cut",
    "W spared, ended": "spared_ended",
    "of ": "wasted_ended",
    "once right": "once_right",
    "last stated right": "stated_right",
    "answered": "answered",
    "right": "answered_right",
    "by luck": "luck",
    "solved, fired": "fired_solved",
    "lost": "lost",
    "gained": "gained",
}


def page(document: Row) -> str:
    """All tables and sentences, in Markdown."""
    parts = []
    for title, columns in TABLES.items():
        head = ["level", "backend", "budget", *columns]
        lines = [
            [row["dataset"], _method(row), _shown(row["budget"])]
            + [_shown(row[field]) for field in columns.values()]
            for row in document["rows"]
        ]
        parts += [f"## {title}", _table(head, lines)]
    for title, counted in (("Tokens by line", document["kinds"]), ("Excess tokens", None)):
        counted = counted or {
            "longer outputs": document["excess"]["by_kind"],
        }
        names = list(dict.fromkeys(name for one in counted.values() for name in one))
        lines = [[whose, *(_shown(one.get(n, 0)) for n in names)] for whose, one in counted.items()]
        parts += [f"## {title}", _table(["", *names], lines)]
    if document["detectors"]:
        lines = [
            [f"{row['detector']}, then {row['action']}"]
            + [_shown(row[field]) for field in DETECTORS.values()]
            for row in document["detectors"]
        ]
        parts += ["## Detectors, sparse outputs", _table(["detector", *DETECTORS], lines)]
    said = "\n".join(f"- {text}" for text in document["sentences"].values())
    return "\n\n".join([*parts, "## In words", said])


def sentences(document: Row) -> dict[str, str]:
    """What the counts say, by the name of what is said; nothing is said of what was not counted.

    Args:
        document: what `trace_readings.counted` found.
    """
    plain = [row for row in document["rows"] if row["penalty"] == "none"]
    full = [row for row in plain if row["backend"] == "full" and row["dataset"] != "all"]
    sparse = next((row for row in plain if row["backend"] == "all" and row["dataset"] == "all"), {})
    cells = [
        r
        for r in plain
        if "all" not in (r["dataset"], r["backend"])
        and r["budget"] is not None
        and r["role"] == "method"
    ]
    found = {"read": _of_kinds(document["kinds"])}
    if sparse:
        found |= _of_answers(sparse) | _of_unsolved(sparse, cells) | _of_checks(sparse)
    if full:
        found["full"] = _of_full(full)
    if document["excess"]["pairs"]:
        found |= _of_lengths(document["excess"])
    for row in document["detectors"]:
        if row["fired"]:
            found[f"{row['detector']}:{row['action']}"] = _of_detector(row)
    return found


def _of_kinds(kinds: Mapping[str, Mapping[str, int]]) -> str:
    unread = {
        whose: f"{counted.get('unknown', 0):,} of {sum(counted.values()):,}"
        for whose, counted in kinds.items()
    }
    return (
        f"Tokens in lines that the language does not begin: {unread['full']} under full attention, "
        f"{unread['sparse']} under sparse."
    )


def _of_answers(row: Row) -> dict[str, str]:
    unsolved = row["n"] - row["solved"]
    return {
        "first": f"The first value stated of the goal is right in {row['first_right']:,} of "
        f"{row['n']:,} sparse outputs, the last one in {row['last_right']:,}, the answer in "
        f"{row['solved']:,}: {row['first_gained']:,} answers were stated first and then lost, "
        f"{row['first_lost']:,} came later (exact test over problems: "
        f"p {_p(row['first_p_problems'])}; over outputs: p {_p(row['first_p'])}). Up to the "
        f"first there are {100 * row['first_tokens_saved']:.0f}% fewer tokens.",
        "once_right": f"{row['once_right']:,} of {unsolved:,} sparse outputs that are not solved "
        "state the right value of the goal somewhere.",
    }


def _of_unsolved(row: Row, cells: Sequence[Row]) -> dict[str, str]:
    unsolved = row["n"] - row["solved"]
    mostly = sorted(
        (one for one in cells if 2 * one["gave_up"] >= one["n"]),
        key=lambda one: (-one["gave_up"] / one["n"], str(one["backend"]), one["budget"]),
    )
    found = {
        "unsolved": f"Of {unsolved:,} sparse outputs that are not solved, {row['gave_up']:,} give "
        f'up ("The answer is not known."), {row["wrong"]:,} end with a wrong answer or none, and '
        f"{row['cut']:,} are cut at the cap.",
        "gave_up": f"At least half of the outputs give up in {len(mostly)} of {len(cells)} "
        "configurations" + (": " if mostly else "") + "; ".join(map(gives_up, mostly)) + ".",
    }
    if row["wasted_cut"]:
        found["wasted"] = (
            f"Sparse outputs that are not solved have {row['wasted_cut']:,} tokens after the last "
            f"line that added a right value (W) where the cap cut them, and "
            f"{row['wasted_ended']:,} where they end by themselves; exact loops at the end (L) are "
            f"{_percent(row['loops_in_wasted_cut'], row['wasted_cut'])} of the first, tails of "
            f"passages seen before (T) {_percent(row['tails_in_wasted_cut'], row['wasted_cut'])}."
        )
    return found


def gives_up(row: Row) -> str:
    """How many outputs of a configuration give up."""
    return (
        f"{row['gave_up']} of {row['n']} outputs of {row['backend']} at {row['budget']} on "
        f"{row['dataset']} problems"
    )


def _of_checks(row: Row) -> dict[str, str]:
    return {
        "checks": f'Of the values that a "Wait" changed in sparse outputs, '
        f"{row['right_to_wrong']:,} went from right to wrong, {row['wrong_to_right']:,} from wrong "
        f"to right and {row['wrong_to_wrong']:,} from one wrong value to another or the same."
    }


def _of_full(rows: Sequence[Row]) -> str:
    at = ", ".join(f"{_share(row['right_at'])} ({row['dataset']})" for row in rows)
    waits = sum(
        row[name] for row in rows for name in ("right_to_wrong", "wrong_to_right", "wrong_to_wrong")
    )
    n, said = sum(row["n"] for row in rows), sum(row["with_disagreement"] for row in rows)
    return (
        f"Under full attention the goal's value is first right at {at} of an output, on average; "
        f"a check disagrees in {said} of {n} outputs and changes {waits} values."
    )


def _of_lengths(row: Row) -> dict[str, str]:
    found = {}
    if row["shorter"]:
        ends = row["shorter_by_end"]
        found["shorter"] = (
            f"Of {row['shorter']:,} sparse outputs shorter than full attention's on the same "
            f"problem, {ends.get('gave up', 0):,} give up, {ends.get('wrong', 0):,} end wrong and "
            f"{ends.get('solved', 0):,} are solved."
        )
    if row["longer"]:
        ends, kinds = row["by_end"], row["by_kind"]
        parts = sorted(((n, kind) for kind, n in kinds.items()), reverse=True)[:SHOWN]
        most = ", ".join(f"{kind} {_percent(n, sum(kinds.values()))}" for n, kind in parts)
        found["longer"] = (
            f"Of the additional tokens of {row['longer']:,} longer outputs, "
            f"{_percent(ends.get('cut', 0), sum(ends.values()))} lie in outputs cut unsolved, "
            f"{_percent(ends.get('wrong', 0) + ends.get('gave up', 0), sum(ends.values()))} in "
            f"those that end wrong or give up and "
            f"{_percent(ends.get('solved', 0), sum(ends.values()))} in solved ones; by what their "
            f"lines do, most are: {most}."
        )
        found["forgotten"] = (
            f"{row['longer_forgotten']:,} of {row['longer']:,} longer outputs have a settled value "
            "that is not known later."
        )
    if row["both_right"]:
        found["before_and_after"] = (
            f"In {row['both_right']:,} sparse outputs that state the goal's right value, as full "
            f"attention's do, there are {row['more_before_right'] / row['both_right']:+.0f} tokens "
            f"until then and {row['more_after_right'] / row['both_right']:+.0f} after it, on "
            "average."
        )
    return found


def _of_detector(row: Row) -> str:
    said = (
        f"{row['detector']} fires in {row['fired']:,} of {row['n']:,} sparse outputs and spares "
        f"{_percent(row['spared_cut'], row['wasted_cut'])} of W where the cap cut them and "
        f"{_percent(row['spared_ended'], row['wasted_ended'])} where they end; in "
        f"{row['once_right']:,} of these texts the goal's right value was written by then, in "
        f"{row['stated_right']:,} it was the last one stated; {row['lost']:,} of "
        f"{row['fired_solved']:,} that are solved without it are lost"
    )
    if row["action"] == "stop":
        return said + "."
    return said + (
        f". Then {row['action']} gives {row['answered']:,} answers, {row['answered_right']:,} of "
        f"them right, {row['gained']:,} of them gained; answers of other problems would be right "
        f"{row['luck']:.1f} times."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(one.strip() for one in line) + " |" for line in lines)


def _method(row: Row) -> str:
    return str(row["backend"]) + ("" if row["penalty"] == "none" else f" + {row['penalty']}")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2g}" if 0 < value < 0.01 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _p(p: float) -> str:
    return (
        f"= {p:.2g}"
        if p >= 0.001
        else next((f"< 1e-{digits}" for digits in (30, 20, 10, 6, 4) if p < 10**-digits), "< 0.001")
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"
