"""Write docs/results/null_worlds.md from what `null_worlds.py` found.

    python scripts/measuring/null_worlds.py lil-out/null --out found.json  # an hour or two
    python scripts/pages/null_page.py --take found.json [more.json ...]
    python scripts/pages/null_page.py --check    # print; exit code 1 if the page differs

No number of the page is typed by hand, and whether an aim is reached is said by rule.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "null.json"
Found = dict[str, list[dict[str, Any]]]

#: What is aimed at: the share of worlds with a claim, how far the mean ratio may be from 1, and
#: how often an interval has to cover what is true.
FALSE, OFF, COVERED = 0.05, 0.01, 0.93
#: Pools in words.
POOLS = {
    "reasoner-0.6": "the shipped reasoner, temperature 0.6",
    "reasoner-1.0": "the shipped reasoner, temperature 1",
    "random-1.0": "a model of random weights, temperature 1",
    "dither": "the shipped reasoner, greedy, `dither` with other seeds",
}
INTERVALS = {
    "length_ratio": "length ratio",
    "length_ratio_solved": "length ratio, both solve",
    "keys_read_per_solved_ratio": "keys per solved problem, ratio",
    "accuracy_change": "accuracy change",
    "accuracy": "accuracy",
    "mean_tokens": "mean tokens",
}


def render(found: Found) -> str:
    """The tables, and what they say of the aims."""
    nulls = [
        [
            POOLS[row["pool"]], str(row["problems"]), str(row["samples"]),
            f"{row['mean_tokens']:.0f}", f"{row['scatter']:.3f}", f"{100 * row['solved']:.1f}",
            f"{100 * row['same']:.1f}", str(row["worlds"]), f"{100 * row['any_claim']:.1f}",
            ", ".join(sorted(row["claims"])) or "none", f"{row['mean_length_ratio']:.4f}",
        ]
        for row in found["null"]
    ]  # fmt: skip
    heads = [
        "outputs of", "problems", "samples each", "tokens", "scatter", "solved, %",
        "pairs with the same text, %", "worlds", "worlds with a claim, %", "claims",
        "mean length ratio",
    ]  # fmt: skip
    covered = [
        [POOLS[row["pool"]], str(row["problems"]), *(_share(row[name]) for name in INTERVALS)]
        for row in found["coverage"]
    ]
    power = [
        [
            POOLS[row["pool"]],
            str(row["problems"]),
            f"{row['length_ratio']:.3f}",
            f"{100 * row['found']:.0f}",
            f"{100 * row['false_beside']:.0f}",
        ]
        for row in found["power"]
    ]
    return "\n".join(
        [
            "## Nothing differs but chance", "", _claims(found), "",
            *_table(heads, nulls), "",
            "Scatter: the standard deviation of a problem's samples, as a share of their mean.", "",
            "## How often intervals cover what is true", "", _coverage(found), "",
            *_table(["outputs of", "problems", *INTERVALS.values()], covered), "",
            "A dash: no interval, since too few problems differ or are solved.", "",
            "## A planted effect", "",
            "A tenth of one method's outputs are repeated once, with right answers kept.", "",
            *_table(
                ["outputs of", "problems", "mean length ratio", "worlds in which it is found, %",
                 "worlds with a claim about another method, %"],
                power,
            ), "",
        ]
    )  # fmt: skip


def _claims(found: Found) -> str:
    worst = max(found["null"], key=lambda row: row["any_claim"])
    ratio = max(found["null"], key=lambda row: abs(row["mean_length_ratio"] - 1))
    few = "at most" if worst["any_claim"] <= FALSE else "more than"
    near = "within" if abs(ratio["mean_length_ratio"] - 1) <= OFF else "not within"
    return (
        f"The largest share of worlds with any claim is {few} {100 * FALSE:g}% "
        f"({100 * worst['any_claim']:.1f}%), and mean length ratios are {near} {OFF:g} of 1 "
        f"(furthest: {ratio['mean_length_ratio']:.4f})."
    )


def _coverage(found: Found) -> str:
    short = [
        f"{label} of {POOLS[row['pool']]}, {row['problems']} problems: {row[name][0]:.3f}"
        for row in found["coverage"]
        for name, label in INTERVALS.items()
        if row[name] is not None and row[name][0] < COVERED
    ]
    known = sum(row[name] is not None for row in found["coverage"] for name in INTERVALS)
    told = f"Of {known} intervals at a nominal 95%, {len(short)} cover less than {COVERED:.2f}"
    return f"{told}: {'; '.join(short)}." if short else f"{told}."


def _share(found: Sequence[float] | None) -> str:
    return "-" if found is None else f"{found[0]:.3f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows)]


def merged(before: Found, taken: Sequence[Found]) -> Found:
    """What was found, pool by pool; of a pool found twice the later."""
    found: Found = {}
    for part in ("null", "coverage", "power"):
        rows = {
            (row["pool"], row["problems"]): row
            for document in (before, *taken)
            for row in document.get(part, [])
        }
        found[part] = sorted(
            rows.values(), key=lambda row: ([*POOLS].index(row["pool"]), row["problems"])
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--take", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = merged(before, [json.loads(path.read_text()) for path in args.take])
    if args.take:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    page = ROOT / "docs" / "results" / "null_worlds.md"
    return pages.put(page, "null_page.py", render(found), args.check)


if __name__ == "__main__":
    sys.exit(main())
