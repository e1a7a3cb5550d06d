"""Write the README's results from what a sweep found.

    lil sweep --json > sweep.json                         # the demo, once
    python scripts/readme_results.py --take sweep.json    # docs/demo.json and the README from it
    python scripts/readme_results.py --check              # print; exit code 1 if README differs

No number of that section is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pages
import records
import stopping_readings
import stopping_tables

from experiments.report.finding import LEAST

ROOT = Path(__file__).parent.parent
KEPT = ("packages", "device", "threads", "dtype", "seed", "finding", "config", "counts")


def percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}"


def interval(row: dict[str, Any], name: str, digits: int = 2) -> str:
    """A ratio of the row with its interval, where it has one."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    bounds = "" if None in (low, high) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{row[name]:.{digits}f}{bounds}"


def clear(row: dict[str, Any], name: str) -> str:
    """The same, with as many digits as tell an interval beside 1 from 1."""
    near = "1.00" in (f"{row[f'{name}_low']:.2f}", f"{row[f'{name}_high']:.2f}")
    return interval(row, name, 4 if near else 2)


def ratio(row: dict[str, Any]) -> str:
    return "-" if row["length_ratio"] is None else interval(row, "length_ratio")


def both(row: dict[str, Any]) -> str:
    if row["length_ratio_solved"] is None:
        return "-"
    return f"{interval(row, 'length_ratio_solved')}, {row['solved_by_both']}"


def cost(row: dict[str, Any]) -> str:
    if row["keys_read_per_solved"] is None:
        return "none solved"
    return interval(row, "keys_read_per_solved_ratio")


def place(row: dict[str, Any]) -> str:
    return f"`{row['backend']}` {row['budget']} on {row['dataset']}"


def readings(rows: list[dict[str, Any]]) -> list[str]:
    """What stands out, by rule: whole intervals on one side of 1."""
    sparse = [row for row in rows if row["detector"] == "none" and row["budget"] is not None]
    told = [row for row in sparse if row["length_ratio_solved_low"] is not None]
    several = [row for row in told if row["solved_by_both"] >= LEAST]
    longer = [row for row in several if row["length_ratio_solved_low"] > 1]
    ends = [row for row in sparse if row["length_ratio_high"] is not None]
    shorter = [row for row in ends if row["length_ratio_high"] < 1 and not row["capped"]]
    lines = [
        "By rule, where the whole 95% interval lies on one side of 1:",
        "",
    ]
    for what, found, name, among in (
        (
            f"Longer over the problems that both solve, {LEAST} or more",
            longer,
            "length_ratio_solved",
            told,
        ),
        ("Shorter, and no output cut at the cap", shorter, "length_ratio", ends),
    ):
        which = "; ".join(f"{place(row)} {clear(row, name)}" for row in found) or "none"
        lines.append(f"- {what}, {len(found)} of {len(among)}: {which}.")
    for what, name, side in (
        ("Longer output", "length_ratio", "low"),
        ("Fewer keys per solved problem than full attention", "keys_read_per_solved_ratio", "high"),
    ):
        counts = []
        for backend in dict.fromkeys(row["backend"] for row in sparse):
            bounds = [row[f"{name}_{side}"] for row in sparse if row["backend"] == backend]
            known = [bound for bound in bounds if bound is not None]
            found = sum(bound > 1 if side == "low" else bound < 1 for bound in known)
            counts.append(f"`{backend}` {found} of {len(bounds)}")
        lines.append(f"- {what}: {', '.join(counts)}.")
    return lines


#: What the README shows of docs/actions.md: as the paper gives it, as the demo has it, and ours.
SHOWN = {**stopping_readings.GUARDIANS, "cycle(repeats=2, min_tokens=60)": "ours"}


def stopping(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The paper's detector and ours on problems never used while choosing, smallest cap first."""
    lines = [
        "| detector | then | cap, times full | L spared, % | T spared, % | lost | gained | "
        "net, points | safe |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cap in (2, 4):
        rows = found[f"greedy-{cap}"]
        if absent := SHOWN.keys() - {row["detector"] for row in rows}:
            raise RuntimeError(f"docs/actions.json has no {', '.join(sorted(absent))}")
        for row in rows:
            if row["detector"] not in SHOWN:
                continue
            lines.append(
                f"| `{row['detector']}`, {SHOWN[row['detector']]} | {row['action']} | {cap} | "
                f"{stopping_tables.interval(row['loops'])} | "
                f"{stopping_tables.interval(row['tails'])} | {row['lost']} | {row['gained']} | "
                f"{stopping_tables.interval(row['net'], 1)} | "
                f"{'yes' if stopping_readings.is_safe(row) else 'no'} |"
            )
    about = stopping_tables.about(found["greedy-2"])
    return [
        f"Stopping, on problems that no detector was chosen on; safe as docs/actions.md says. At a "
        f"cap of twice full attention: {about}",
        "",
        *lines,
    ]


def render(document: dict[str, Any], found: dict[str, list[dict[str, Any]]]) -> str:
    """The section: conditions, a table a level, and what stands out, from the rows alone.

    Args:
        document: docs/demo.json.
        found: what docs/actions.json has of detectors.
    """
    rows = [row for row in document["rows"] if row["penalty"] == "none"]
    manifest = document["manifest"]
    versions = manifest["packages"]
    lines = [
        f"torch {versions['torch']}, transformers {versions['transformers']}, "
        f"{manifest['device']}, {manifest['threads']} thread"
        f"{'' if manifest['threads'] == 1 else 's'}, {manifest['dtype']}, seed "
        f"{manifest['seed']}. Brackets: 95% intervals.",
        "",
    ]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        plain = [r for r in rows if r["dataset"] == dataset and r["detector"] == "none"]
        guarded = {
            (r["backend"], r["budget"]): r
            for r in rows
            if (r["dataset"], r["detector"], r["action"]) == (dataset, "guardian", "stop")
        }
        lines += [
            f"**{dataset}**, {plain[0]['n']} problems, full attention "
            f"{plain[0]['mean_tokens']:.0f} tokens",
            "",
            "| backend | budget | solved, % | length / full | cut, % | length, both solve, n | "
            "keys per solved / full | Guardian saves, % | lost, gained |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in plain:
            guard = guarded[row["backend"], row["budget"]]
            low, high = percent(row["accuracy_low"]), percent(row["accuracy_high"])
            lines.append(
                f"| `{row['backend']}` | {row['budget'] or 'all'} | {percent(row['accuracy'])} "
                f"[{low}, {high}] | {ratio(row)} | {percent(row['capped'] / row['n'])} | "
                f"{both(row)} | {cost(row)} | {percent(guard['token_savings'])} | "
                f"{guard['detector_solved_lost']}, {guard['detector_solved_gained']} |"
            )
        lines.append("")
    lines += [
        f"As `lil sweep` says it: {manifest['finding']}",
        "",
        *readings(rows),
        "",
        *stopping(found),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--take", type=Path, help="output of `lil sweep --json`")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    kept = ROOT / "docs" / "demo.json"
    if args.take:
        document = json.loads(args.take.read_text())
        document["manifest"] = {key: document["manifest"].get(key) for key in KEPT}
        for row in document["rows"]:
            del row["compression_curve"]  # long, and drawn in the figures
        records.write(kept, document)
    found = records.read(ROOT / "docs" / "actions.json")["stopping"]
    section = render(records.read(kept), found)
    return pages.put(ROOT / "README.md", "readme_results.py", section, args.check)


if __name__ == "__main__":
    sys.exit(main())
