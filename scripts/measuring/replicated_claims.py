"""Which claims of one report hold in another, of other problems.

    lil report lil-out/demo --json > first.json
    lil sweep --preset demo --split test --limit 40 --out lil-out/fresh --json > second.json
    python scripts/measuring/replicated_claims.py first.json second.json
    python scripts/measuring/replicated_claims.py first.json second.json --json > replicated.json

A claim of a configuration holds where the second report makes it, too. Otherwise its number there
lies on the same side of no change or on the other; "reversed" is a claim of the opposite.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report.claims import MEASURES

Key = tuple[Any, ...]

#: What becomes of a claim.
HOLDS, SAME, OTHER, REVERSED, ABSENT = (
    "holds", "same side", "other side", "reversed", "not measured"
)  # fmt: skip


def claims(report: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    """What is measured at each cap, by configuration; without detectors and penalties."""
    found: dict[Key, Mapping[str, Any]] = {}
    for row in (*report["rows"], *report["pooled"]):
        if (row["detector"], row["penalty"]) != ("none", "none") or row["role"] == "null":
            continue
        name = (row["dataset"], row["backend"], row["budget"], row["role"])
        for cap in (row, *row["caps"]):
            found[(*name, cap.get("factor", "cap"))] = cap
    return found


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[Key, str, str]]:
    """Of each claim of the first report its configuration, its words, and what became of it."""
    there = claims(second)
    for name, cap in claims(first).items():
        for measure in MEASURES:
            for word, opposite in (
                (measure.above, measure.below),
                (measure.below, measure.above),
            ):
                if word in cap["claims"]:
                    side = 1 if word == measure.above else -1
                    fate = ABSENT
                    if (other := there.get(name)) is not None:
                        value = other[measure.field]
                        if word in other["claims"]:
                            fate = HOLDS
                        elif opposite in other["claims"]:
                            fate = REVERSED
                        elif value is not None:
                            fate = SAME if side * (value - measure.middle) > 0 else OTHER
                    yield name, word, fate


def document(found: Sequence[tuple[Key, str, str]], second: Mapping[str, Any]) -> dict[str, Any]:
    """What becomes of all claims, of which problems, and what controls solve of these."""
    config = second["manifest"]["config"]
    controls: dict[str, list[int]] = {}
    for row in second["rows"]:
        if row["role"] == "control" and row["detector"] == "none":
            solved, problems = controls.setdefault(f"{row['backend']} {row['budget']}", [0, 0])
            now = [solved + round(row["accuracy"] * row["n"]), problems + row["n"]]
            controls[f"{row['backend']} {row['budget']}"] = now
    return {
        "split": config["split"],
        "limit": config["limit"],
        "datasets": config["datasets"],
        "controls": controls,
        "claims": [{"of": list(name), "claim": word, "fate": fate} for name, word, fate in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    first, second = (json.loads(path.read_text()) for path in (args.first, args.second))
    found = list(compared(first, second))
    if args.json:
        print(json.dumps(document(found, second)))
        return
    counts: dict[str, Counter[str]] = {}
    for _, word, fate in found:
        counts.setdefault(word, Counter())[fate] += 1
    for word, fates in counts.items():
        told = ", ".join(f"{fates[fate]} {fate}" for fate in (HOLDS, SAME, OTHER, REVERSED, ABSENT))
        print(f"{word}: {fates.total()} claims: {told}")
    for name, word, fate in found:
        if fate != HOLDS:
            print(f"  {' '.join(map(str, name))}: {word}: {fate}")


if __name__ == "__main__":
    main()
