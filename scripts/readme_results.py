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

ROOT = Path(__file__).parent.parent
KEPT = ("packages", "device", "threads", "dtype", "seed", "finding", "config", "counts")


def percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}"


def points(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.0f}"


def ratio(row: dict[str, Any]) -> str:
    if row["length_ratio"] is None or row["budget"] is None:
        return "1"
    low, high = row["length_ratio_low"], row["length_ratio_high"]
    bounds = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{row['length_ratio']:.2f}{bounds}"


def render(document: dict[str, Any]) -> str:
    """The section: conditions, a table a level, and what stands out, from the rows alone."""
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
            "| backend | budget | solved, % | output length / full | keys per solved / full | "
            "Guardian saves, % | its accuracy change, points |",
            "|---|---|---|---|---|---|---|",
        ]
        cost = plain[0]["keys_read_per_solved"]
        for row in plain:
            guard = guarded[row["backend"], row["budget"]]
            per_solved = row["keys_read_per_solved"]
            relative = "none solved" if per_solved is None else "-"
            if per_solved is not None and cost:
                relative = f"{per_solved / cost:.2f}"
            low, high = percent(row["accuracy_low"]), percent(row["accuracy_high"])
            change = guard["accuracy"] - row["accuracy"]
            lines.append(
                f"| `{row['backend']}` | {row['budget'] or 'all'} | {percent(row['accuracy'])} "
                f"[{low}, {high}] | {ratio(row)} | {relative} | "
                f"{percent(guard['token_savings'])} | {points(change)} |"
            )
        lines.append("")
    lines += [f"In one sentence, as `lil sweep` says it: {manifest['finding']}", ""]
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
    return pages.put(
        ROOT / "README.md", "readme_results.py", render(records.read(kept)), args.check
    )


if __name__ == "__main__":
    sys.exit(main())
