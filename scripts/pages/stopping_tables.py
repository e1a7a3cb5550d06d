"""The tables of docs/results/actions.md that say what detectors save and lose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import stopping_readings
from scipy.stats import binomtest

Row = dict[str, Any]

#: Of a pooled line, what its table needs.
KEPT = (
    "detector", "action", "samples", "problems", "fired", "tokens", "loops", "tails", "solved",
    "lost", "gained", "net", "differing", "net_differing", "levels", "cells", "losing", "full",
)  # fmt: skip

#: Of what a program that reads the model's language counts of a detector, what a table needs.
COUNTED = (
    "wasted_cut", "spared_cut", "wasted_ended", "spared_ended", "once_right", "stated_right",
    "answered", "answered_right", "luck",
)  # fmt: skip

#: Of a sweep's settings, those that say which problems it is of.
CONDITIONS = ("split", "limit", "datasets")
#: How stores are called.
TRACES = {
    "calibration": "Traces of the reasoner that ships. ",
    "earlier": "Of an earlier one, another tiny model. ",
}
STORES = {"calibration": "shipped", "earlier": "earlier", "demo": "the demo's"}


def taken(measured: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of all that was measured; what was not measured again stays.

    Args:
        measured: documents by the name of their part.
        before: what this gave of an earlier measurement.
    """
    found = dict(before)
    for name, document in measured.items():
        if name.startswith("greedy-"):
            counted = measured[f"readings-{name}"]["detectors"]
            found[name] = with_counts(pooled_rows(document), counted)
    calibrated = [
        asked(name)
        | {key: document.get(key) for key in ("refused", "chosen", "chosen_on", "other_half")}
        for name, document in measured.items()
        if name.startswith("calibrated-")
    ]
    if calibrated:
        found["calibrated"] = calibrated
    if "ordinary" in measured:
        ordinary = dict(measured["ordinary"])
        ordinary["stopped"] = {
            name: {kind: len(files) for kind, files in kinds.items()}
            for name, kinds in ordinary["stopped"].items()
        }
        found["ordinary"] = ordinary
    if "full" in measured:
        keys = ("dataset", "detector", "action", "finished")
        found["full"] = [{key: row[key] for key in keys} for row in measured["full"]["rows"]]
    found |= {name: measured[name] for name in ("cost", "pairs") if name in measured}
    if "live" in measured:
        found["live"] = measured["live"]["manifest"]["live"]
    found["conditions"] = before.get("conditions", {}) | {
        name: {key: document["manifest"]["config"][key] for key in CONDITIONS}
        for name, document in measured.items()
        if name in found or name in ("full", "kept", "calibration", "earlier")
        if "config" in document.get("manifest", {})
    }
    return found


def asked(name: str) -> Row:
    """Detector, store and rate of a calibration, from the name of its part."""
    _, detector, *where = name.split("-")
    store, rate = where or ("calibration", "0.005")
    return {"detector": detector, "store": store, "rate": float(rate)}


def condition(found: dict[str, Any], *names: str) -> str:
    """Whose problems a section is of, of which split and how many."""
    lines = []
    for name in names:
        of = found["conditions"][name]
        lines.append(
            f"{TRACES.get(name, '')}Problems of the split `{of['split']}`, {of['limit']} of each "
            f"of {', '.join(of['datasets'])}."
        )
    return " ".join(lines)


def pooled_rows(document: dict[str, Any]) -> list[Row]:
    """What a sweep says over all sparse configurations, without penalties."""
    rows = [row for row in document["stopping"] if row["penalty"] == "none"]
    return [{key: row[key] for key in KEPT} for row in rows]


def with_counts(rows: Sequence[Row], counted: Sequence[Row]) -> list[Row]:
    """Rows with what was counted of the same detector and action in the texts themselves."""
    by_name = {(one["detector"], one["action"]): one for one in counted}
    return [
        row | {key: by_name[row["detector"], row["action"]][key] for key in COUNTED} for row in rows
    ]


def interval(found: Row, digits: int = 0) -> str:
    """An estimate in per cent with its 95% interval."""
    if found["estimate"] is None:
        return "-"
    told = f"{100 * found['estimate']:.{digits}f}"
    if None in (found["low"], found["high"]):
        return told
    return f"{told} [{100 * found['low']:.{digits}f}, {100 * found['high']:.{digits}f}]"


def ratio(found: Row) -> str:
    if found["estimate"] is None:
        return "-"
    told = f"{found['estimate']:.2f}"
    if None in (found["low"], found["high"]):
        return told
    return f"{told} [{found['low']:.2f}, {found['high']:.2f}]"


#: Columns of the tables of detectors: the head, and a row's cell.
COLUMNS: dict[str, Callable[[Row], Any]] = {
    "detector": lambda row: row["detector"],
    "then": lambda row: row["action"],
    "fired": lambda row: row["fired"],
    "tokens saved, %": lambda row: interval(row["tokens"]),
    "L spared, %": lambda row: interval(row["loops"]),
    "T spared, %": lambda row: interval(row["tails"]),
    "lost": lambda row: lost(row),
    "gained": lambda row: str(sum(level["gained"] for level in row["levels"])),
    "net, points": lambda row: interval(row["net_differing"], 1),
    "lost, by level": lambda row: by_level(row["levels"]),
    "configurations that lose": lambda row: ", ".join(row["losing"]) or "-",
    "W spared, cut, %": lambda row: percent(row["spared_cut"], row["wasted_cut"]),
    "W spared, ended, %": lambda row: percent(row["spared_ended"], row["wasted_ended"]),
    "right value written": lambda row: row["once_right"],
    "right value written last": lambda row: row["stated_right"],
    "answers": lambda row: row["answered"],
    "right": lambda row: row["answered_right"],
    "right by luck": lambda row: f"{row['luck']:.1f}",
}

#: Of the table of what detectors save and lose, and of that of what the texts had said by then.
SAVED = (
    "detector", "then", "fired", "tokens saved, %", "W spared, cut, %", "W spared, ended, %",
    "L spared, %", "T spared, %", "lost", "gained", "net, points", "lost, by level",
    "configurations that lose",
)  # fmt: skip
SAID = (
    "detector", "then", "fired", "right value written", "right value written last", "answers",
    "right", "right by luck",
)  # fmt: skip


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}" if whole else "-"


def lost(row: Row) -> str:
    """Of solved outputs that differ from full attention's."""
    return (
        f"{sum(level['lost'] for level in row['levels'])} of "
        f"{sum(level['solved'] for level in row['levels'])}"
    )


def by_level(levels: Sequence[Row]) -> str:
    """The same by data set, with the share lost and its 95% interval where something is lost."""
    cells = []
    for level in levels:
        cell = f"{level['dataset']} {level['lost']} of {level['solved']}"
        cells.append(cell + (f": {interval(level['lost_share'])}%" if level["lost"] else ""))
    return ", ".join(cells)


def table(rows: Sequence[Row], heads: Sequence[str]) -> list[str]:
    """A row each, with these of the columns."""
    return markdown(heads, [[str(COLUMNS[head](row)) for head in heads] for row in rows])


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    return ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows)]


def about(rows: Sequence[Row]) -> str:
    first = rows[0]
    differing = sum(level["solved"] for level in first["levels"])
    return (
        f"{first['samples']:,} sparse traces of {first['problems']} problems; "
        f"{first['solved']:,} of the traces are solved, {differing:,} of which differ from full "
        f"attention's; {first['cells']} configurations."
    )


def calibrated(found: Sequence[Row]) -> list[str]:
    lines = [
        "| detector | traces | rate | chosen | false stops, half to choose on | other half | L, T "
        "spared there, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        head = f"| {row['detector']} | {STORES[row['store']]} | {100 * row['rate']:g}% |"
        if row["refused"]:
            lines.append(f"{head} refused: {row['refused'].partition('expected ')[2]} | | | |")
            continue
        here, there = row["chosen_on"], row["other_half"]
        lines.append(
            f"{head} {row['chosen']} | {_false(here)} | {_false(there)} | "
            f"{_share(there, 'wasted_loop')}, {_share(there, 'wasted_tail')} |"
        )
    return lines


def _false(half: Row) -> str:
    return (
        f"{half['problems_stopped']} of {half['problems']} problems, {half['stopped']} of "
        f"{half['traces']} traces; 95% upper bound {100 * half['high']:.2f}%"
    )


def _share(half: Row, name: str) -> str:
    found = half["saved"][name]
    return "-" if found is None else f"{100 * found:.0f}"


def ordinary(found: Row) -> list[str]:
    counts = found["files"]
    apart = [kind for kind in counts if kind in ("tables", "loops")]
    kinds = [kind for kind in counts if kind not in apart]
    total = sum(counts[kind] for kind in kinds)
    heads = [f"of {counts[kind]} {kind}" for kind in kinds]
    ends = [f"of {counts[kind]} {kind}" for kind in apart]
    lines = [
        f"| detector | {' | '.join(heads)} | of all {total} | {' | '.join(ends)} |",
        "|---" * (len(kinds) + len(apart) + 2) + "|",
    ]
    for name, stopped in found["stopped"].items():
        of_kind = [stopped.get(kind, 0) for kind in kinds]
        cells = " | ".join(map(str, of_kind))
        all_of_them = f"{sum(of_kind)} ({100 * sum(of_kind) / total:.1f}%)"
        rest = " | ".join(str(stopped.get(kind, 0)) for kind in apart)
        lines.append(f"| {name} | {cells} | {all_of_them} | {rest} |")
    return lines


def cost(found: Row) -> list[str]:
    lines = [
        "| detector | microseconds a token | of the last tenth | MB held |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['detector']} | {row['us_a_token']:.1f} | {row['us_a_token_last']:.1f} | "
        f"{row['bytes'] / 1e6:.1f} |"
        for row in found["rows"]
    ]
    return lines


def full(rows: Sequence[Row]) -> list[str]:
    """Full attention's traces that each detector stops, of those that end by themselves."""
    ended = sum(row["finished"] for row in rows if row["detector"] == "none")
    lines = ["| detector | stopped | traces | 95% upper bound, % |", "|---|---|---|---|"]
    for name in dict.fromkeys(row["detector"] for row in rows if row["detector"] != "none"):
        mine = [row for row in rows if (row["detector"], row["action"]) == (name, "stop")]
        stopped = ended - sum(row["finished"] for row in mine)  # those cut at the cap stay out
        high = binomtest(stopped, ended, alternative="less").proportion_ci(0.95).high
        lines.append(f"| {name} | {stopped} | {ended} | {100 * high:.2f} |")
    return lines


def live(rows: Sequence[Row]) -> list[str]:
    lines = ["| detector | how | traces | verdicts | agree |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['detector']} | {row['how']} | {row['traces']} | {row['verdicts']} | "
        f"{row['traces'] - len(row['differ'])} |"
        for row in rows
    ]
    apart = [f"- `{told}`" for row in rows for told in row["differ"]]
    return [*lines, *(["", "Where they differ:", "", *apart] if apart else [])]


def kept_prompts(found: Row) -> list[str]:
    lines = [
        "| method | budget | solved, % | prompt kept, % | change, points | p | longer, where both "
        "solve | prompt kept | keys per solved problem, kept over dropped |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['method']} | {row['budget']} | {100 * row['dropped']:.0f} | "
        f"{100 * row['kept']:.0f} | {interval(row['change'])} | {row['p']:.2g} | "
        f"{ratio(row['longer_dropped']['longer'])} | {ratio(row['longer_kept']['longer'])} | "
        f"{ratio(row['cost'])} |"
        for row in found["rows"]
    ]
    lines += ["", "| budget | random, prompt kept, less | points | p |", "|---|---|---|---|"]
    lines += [
        f"| {row['budget']} | {row['strongest']} | {interval(row['change'])} | {row['p']:.2g} |"
        for row in found["random"]
    ]
    return lines


def render(found: dict[str, Any]) -> list[str]:
    """All sections."""
    lines = ["## What the tables say, by rule", "", stopping_readings.definition(), ""]
    sweeps = sorted((name for name in found if name.startswith("greedy-")), key=_cap)
    said = [stopping_readings.reading("greedy", _cap(name), found[name]) for name in sweeps]
    lines += [*markdown(stopping_readings.HEADS, said), ""]
    lines += [*stopping_readings.kept_readings(found["pairs"]), ""]
    for name in sweeps:
        lines += [f"## Detectors at a cap of {_cap(name)} times full attention, greedy", ""]
        told_of = f"{condition(found, name)} {about(found[name])}"
        lines += [told_of, "", *table(found[name], SAVED), ""]
        lines += ["What the stopped outputs had written of the goal, and what is answered:", ""]
        lines += [*table(found[name], SAID), ""]
    cost_of = found["cost"]
    return [
        *lines,
        "## False stops of full attention", "", condition(found, "full"), "",
        *full(found["full"]), "",
        "## Calibrated", "", condition(found, "calibration", "earlier"), "",
        *calibrated(found["calibrated"]), "",
        "## Ordinary files", "",
        "Texts that nobody would call a loop, and loops beside them. Somebody may ask for 20 to 50 "
        "equal lines, for matrices of 8 to 16 rows of zeros, for records and tables in which "
        "little changes, for verse with a refrain, and solutions may come with an honest second "
        "pass (`prose`). No prompt opens a thinking part, so all of each text is watched; rows of "
        "`outside=0` are what a detector stops of such texts while a model thinks.", "",
        *ordinary(found["ordinary"]), "",
        "## Live and replayed", "",
        "Every trace of the greedy sweep at a cap of 2. Where it is decoded again, numbers made "
        "from hidden states may differ by a share of 0.0001: beside other rows sums have another "
        "order. All else must be equal.", "",
        *live(found["live"]), "",
        "## What watching costs", "",
        f"{cost_of['tokens']:,} tokens that do not repeat, medians of {cost_of['repeats']}.", "",
        *cost(cost_of), "",
        "## Prompts kept", "", condition(found, "kept"), "",
        *kept_prompts(found["pairs"]), "",
    ]  # fmt: skip


def _cap(name: str) -> int:
    return int(name.rpartition("-")[2])
