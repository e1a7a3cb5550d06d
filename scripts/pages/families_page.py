"""Write the table of docs/families.md: which kinds of models attend the same through our cache.

    python scripts/pages/families_page.py --measure  # try every kind again: docs/families.json
    python scripts/pages/families_page.py            # rewrite the table
    python scripts/pages/families_page.py --check    # exit code 1 if the page is not up to date

The models are tiny and random; their shapes and what is tried are in tests/attention/wild.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "families.md"
FOUND = ROOT / "docs" / "families.json"
HEADER = """\
| model type | largest difference | budget binds in | other layers | sink and infllm turn keys |
|---|---|---|---|---|"""


def measure() -> dict[str, Any]:
    """What is found of every kind, with the version of transformers."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "attention")]
    import transformers
    import wild

    found = {}
    for name in sorted(wild.WILD):
        print(name, file=sys.stderr)
        found[name] = wild.measured(name)
    return {"transformers": transformers.__version__, "budget": wild.BUDGET, "families": found}


def others(row: dict[str, Any]) -> str:
    """The layers in which no budget binds, in words."""
    parts = []
    if row["sliding"]:
        parts.append(f"{row['sliding']} slide")
    both = row["softmax"] + row["states"] - row["layers"]
    if both > 0:
        parts.append(f"{both} of them keep a state beside their keys")
    if apart := row["states"] - max(both, 0):
        parts.append(f"{apart} keep a state")
    if rest := row["layers"] - row["softmax"] - row["states"] + max(both, 0):
        parts.append(f"{rest} remember nothing")
    if not row["parts"]:
        parts.append("a prompt is read in one forward")
    return "; ".join(parts)


def rendered(found: dict[str, Any]) -> str:
    """The table of those that are taken, and that of those that are refused."""
    taken, refused = [HEADER], ["| model type | found | expected |", "|---|---|---|"]
    for name, row in found["families"].items():
        if "refused" in row:
            refused.append(f"| `{name}` | `{row['field']} = {row['value']}` | {row['refused']} |")
            continue
        binds = row["softmax"] - row["sliding"]
        taken.append(
            f"| `{name}` | {row['difference']:.0e} | {binds} of {row['layers']} layers "
            f"| {others(row)} | {'yes' if row['turns'] else 'refused'} |"
        )
    number = len(taken) - 1
    return "\n".join(
        [
            f"With transformers {found['transformers']}, {number} kinds are taken:",
            "",
            *taken,
            "",
            f"and {len(refused) - 2} are refused, each with what was found and what was expected:",
            "",
            *refused,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--measure", action="store_true", help="try every kind again")
    args = parser.parse_args()
    if args.measure:
        FOUND.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    return pages.put(PAGE, Path(__file__).name, rendered(found), args.check)


if __name__ == "__main__":
    raise SystemExit(main())
