"""Write docs/results/actions.md, and the table of docs/actions.md, from what was measured.

    python scripts/measuring/measure_actions.py lil-out                       # all of it, then this
    python scripts/pages/actions_table.py --take lil-out/measured         # this alone
    python scripts/pages/actions_table.py --check        # print; exit code 1 if a page differs

No number of those tables is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import action_readings
import pages
import records
import stopping_tables

ROOT = Path(__file__).parents[2]
KEPT = (
    "model", "dataset", "backend", "budget", "penalty", "detector", "action", "samples", "fired",
    "accuracy", "n", "capped", "stopped", "mean_tokens", "mean_paid_tokens", "keys_read",
    "repetition_rate", "length_ratio", "detector_solved_lost",
    "detector_solved_gained", "penalty_solved_lost", "penalty_solved_gained",
    "penalty_length_ratio", "penalty_length_ratio_low", "penalty_length_ratio_high",
    "penalty_accuracy_change", "penalty_accuracy_change_p",
)  # fmt: skip
Row = dict[str, Any]

#: The rows of docs/actions.md: a sweep of `stopping`, and of it these detectors and actions.
SWEEP = "greedy-4"
SHOWN = (
    ("guardian(f=250, rate=0.08)", "stop"),
    ("guardian(f=250, rate=0.08)", "answer"),
    ("cycle(repeats=2, min_tokens=60)", "stop"),
    ("cycle(repeats=2, min_tokens=60)", "answer"),
    ("recurrence", "answer"),
    ("stall(level=0.2)", "answer"),
    ("chopper", "answer"),
    ("budget", "answer"),
)
HEADS = (
    "detector", "then", "tokens saved, %", "W spared, cut, %", "L spared, %", "T spared, %",
    "lost", "gained",
)  # fmt: skip


def total(rows: Iterable[Row], field: str) -> float | None:
    """Summed over all samples; None where something was not measured."""
    parts = [(row[field], row["samples"]) for row in rows]
    if any(value is None for value, _ in parts):
        return None
    return float(sum(value * samples for value, samples in parts))


def saved(rows: list[Row], plain: list[Row], field: str) -> str:
    """1 - with / without, in per cent."""
    with_it, without = total(rows, field), total(plain, field)
    if with_it is None or not without:
        return "-"
    return f"{100 * (1 - with_it / without):.1f}"


def solved(rows: Iterable[Row]) -> int:
    return sum(round(row["accuracy"] * row["n"]) for row in rows)


def paired(rows: list[Row], of: list[Row]) -> list[Row]:
    """The rows of `of` for the same configurations as `rows`."""
    key = ("model", "dataset", "backend", "budget")
    wanted = {tuple(row[name] for name in key) for row in rows}
    return [row for row in of if tuple(row[name] for name in key) in wanted]


def actions(document: dict[str, Any]) -> list[str]:
    rows = [row for row in document["rows"] if row["penalty"] == "none"]
    plain = [row for row in rows if row["detector"] == "none"]
    lines = [
        "| detector | then | over | fired | tokens saved, % | keys saved, % | "
        "solved | without it | lost | gained |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    watched = dict.fromkeys(
        (row["detector"], row["action"]) for row in rows if row["detector"] != "none"
    )
    kinds = {
        "full": lambda row: row["backend"] == "full",
        "sparse": lambda row: row["backend"] != "full",
    }
    for over, chosen in kinds.items():
        base = [row for row in plain if chosen(row)]
        lines.append(
            f"| none | | {over} | | | | {solved(base)} of {sum(r['n'] for r in base)} | | | |"
        )
        for detector, action in watched:
            mine = [
                row for row in rows
                if (row["detector"], row["action"]) == (detector, action) and chosen(row)
            ]  # fmt: skip
            if not mine:
                continue
            without = paired(mine, base)
            fired = sum(row["fired"] for row in mine)
            lines.append(
                f"| {detector} | {action} | {over} | {fired} | "
                f"{saved(mine, without, 'mean_paid_tokens')} | "
                f"{saved(mine, without, 'keys_read')} | "
                f"{solved(mine)} of {sum(r['n'] for r in mine)} | {solved(without)} | "
                f"{sum(r['detector_solved_lost'] or 0 for r in mine)} | "
                f"{sum(r['detector_solved_gained'] or 0 for r in mine)} |"
            )
    return lines


def times(document: dict[str, Any]) -> list[str]:
    lines = [
        "| backend | problems | detector | then | fired | tokens kept | tokens decoded | "
        "keys read, times none's | processor seconds | times none's | solved |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    base: Row = {}
    for row in document["rows"]:
        if row["detector"] == "none":
            base = row
        lines.append(
            f"| {row['backend']} {row['budget']} | {row['problems']} {row['dataset']} | "
            f"{row['detector']} | {'' if row['action'] == 'none' else row['action']} | "
            f"{row['fired']} | {row['tokens']} | {row['decoded']} | "
            f"{row['keys_read'] / base['keys_read']:.2f} | {row['seconds']:.1f} | "
            f"{row['seconds'] / base['seconds']:.2f} | {row['solved']} |"
        )
    return lines


def penalties(document: dict[str, Any]) -> list[str]:
    rows = document["rows"]
    lines = [
        "| problems | backend | penalty | Guardian | solved, % | tokens | tokens / none's | "
        "repeated, % | lost | gained |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["penalty_length_ratio_low"], row["penalty_length_ratio_high"]
        ratio = "" if low is None else f"{row['penalty_length_ratio']:.2f} [{low:.2f}, {high:.2f}]"
        lost = "" if row["penalty_solved_lost"] is None else str(row["penalty_solved_lost"])
        gained = "" if row["penalty_solved_gained"] is None else str(row["penalty_solved_gained"])
        lines.append(
            f"| {row['dataset']} | {row['backend']} {row['budget'] or ''} | {row['penalty']} | "
            f"{'yes' if row['detector'] != 'none' else 'no'} | {100 * row['accuracy']:.0f} | "
            f"{row['mean_paid_tokens']:.0f} | {ratio} | {100 * row['repetition_rate']:.0f} | "
            f"{lost} | {gained} |"
        )
    return lines


def chopper(document: dict[str, Any]) -> list[str]:
    lines = [
        "| problems | backend | traces | with salad | chunks | salad | accuracy | AUROC | "
        "chopped, of those with salad | of the others |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in document["rows"]["held_out"]:
        auroc = "-" if row["auroc"] is None else f"{row['auroc']:.3f}"
        lines.append(
            f"| {row['dataset']} | {row['backend']} | {row['traces']} | {row['salad_traces']} | "
            f"{row['chunks']} | {row['salad']} | {row['accuracy']:.3f} | {auroc} | "
            f"{row['chopped_salad']} | {row['chopped_sound']} |"
        )
    return lines


def condition(document: dict[str, Any]) -> str:
    versions = document["packages"]
    return (
        f"torch {versions['torch']}, transformers {versions['transformers']}, "
        f"{document['device']}, {document['threads']} thread"
        f"{'' if document['threads'] == 1 else 's'}, {document['dtype']}{_split(document)}."
    )


def parameters(of: Sequence[dict[str, Any]]) -> str:
    """Names with all their parameters, each once."""
    left_out = ("name", "on_stop", "signals", "digest")
    told = (
        f"`{one['name']}("
        + ", ".join(f"{name}={value}" for name, value in one.items() if name not in left_out)
        + ")`"
        for one in of
    )
    return f"{', '.join(dict.fromkeys(told))}."


def _split(document: dict[str, Any]) -> str:
    """The problems, where a sweep says which."""
    config = document.get("config")
    return f", {config['limit']} problems of the split {config['split']} a level" if config else ""


def render(kept: dict[str, Any]) -> str:
    return "\n".join(
        [
            *stopping_tables.render(kept["stopping"]),
            "## What follows a verdict", "", condition(kept["actions"]["manifest"]), "",
            parameters(kept["actions"]["manifest"]["detectors"]), "",
            *action_readings.action_readings(kept["actions"]["pooled"]), "",
            *actions(kept["actions"]), "",
            "## Seconds", "", condition(kept["times"]), "",
            "The first problems of those above, each capped at twice its own length under full "
            "attention, and the same detectors.", "",
            *times(kept["times"]), "",
            "## Penalties", "", condition(kept["penalties"]["manifest"]), "",
            parameters(kept["penalties"]["manifest"]["penalties"]), "",
            *action_readings.penalty_readings(kept["penalties"]["rows"]), "",
            *penalties(kept["penalties"]), "",
            "## The reasoner's chopper, beside the labels", "",
            stopping_tables.condition(kept["stopping"], "calibration"), "",
            *action_readings.chopper_readings(kept["chopper"]["rows"]["held_out"]), "",
            *chopper(kept["chopper"]), "",
        ]
    )  # fmt: skip


def short(found: dict[str, Any]) -> str:
    """What docs/actions.md shows of it."""
    rows = {(row["detector"], row["action"]): row for row in found[SWEEP]}
    if absent := set(SHOWN) - rows.keys():
        raise RuntimeError(f"docs/actions.json has no {sorted(absent)}")
    told = f"{stopping_tables.condition(found, SWEEP)} {stopping_tables.about(found[SWEEP])}"
    lines = stopping_tables.table([rows[shown] for shown in SHOWN], HEADS)
    return "\n".join([told, "", *lines, ""])


def taken(document: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of a sweep's document."""
    manifest = {
        key: document["manifest"].get(key)
        for key in (
            "packages",
            "device",
            "threads",
            "dtype",
            "seed",
            "config",
            "counts",
            "detectors",
            "penalties",
        )
    }
    return {
        "manifest": manifest,
        "rows": [{key: row[key] for key in KEPT} for row in document["rows"]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--take", type=Path, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    docs = ROOT / "docs"
    store = docs / "actions.json"
    if args.take:
        measured = {
            file.stem: json.loads(file.read_text())
            for file in sorted(args.take.glob("*.json"))
            if not file.stem.endswith(".setting")
        }
        found = dict(records.read(store)) if store.exists() else {}
        found["stopping"] = stopping_tables.taken(measured, found.get("stopping", {}))
        if "actions" in measured:
            pooled = stopping_tables.pooled_rows(measured["actions"])
            found["actions"] = taken(measured["actions"]) | {"pooled": pooled}
        if "penalties" in measured:
            found["penalties"] = taken(measured["penalties"])
        if "times" in measured:
            keys = ("rows", "packages", "device", "threads", "dtype")
            found["times"] = {key: measured["times"][key] for key in keys}
        if "chopper" in measured:
            found["chopper"] = {"rows": measured["chopper"]["rows"]}
        records.write(store, found)
    kept = records.read(store)
    differ = [
        pages.put(page, "actions_table.py", section, args.check)
        for page, section in (
            (docs / "actions.md", short(kept["stopping"])),
            (docs / "results" / "actions.md", render(kept)),
        )
    ]
    return max(differ)


if __name__ == "__main__":
    sys.exit(main())
