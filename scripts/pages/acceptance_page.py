"""Write the tables of fidelity in docs/lossless.md from docs/acceptance.json.

python scripts/measuring/acceptance_readings.py STORE > FILE
python scripts/pages/acceptance_page.py --take reasoner FILE
python scripts/pages/acceptance_page.py --take qwen-coder-1.5b FILE
python scripts/pages/acceptance_page.py
python scripts/pages/acceptance_page.py --check    # exit code 1 if the page differs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "lossless.md", ROOT / "docs" / "acceptance.json"
Found = Mapping[str, Any]
WITH = {"length_ratio": "output length where both solve", "accuracy": "problems solved"}
SAID = {
    ("length_ratio", -1): "the more it is chosen, the shorter the texts",
    ("length_ratio", 1): "the more it is chosen, the longer the texts",
    ("accuracy", 1): "the more it is chosen, the more is solved",
    ("accuracy", -1): "the more it is chosen, the less is solved",
}


def section(found: Found) -> str:
    """The table and what may be said of it."""
    rows = [_row(one) for one in sorted(found["cells"], key=lambda one: -one["share"][0])]
    heads = ("backend", "tokens chosen, %", "solved, %", "output length where both solve", "of")
    said = [sentence(one) for one in found["correlations"]]
    return pages.table(heads, rows) + "\n" + "\n".join(f"- {one}" for one in said) + "\n"


def _row(one: Found) -> tuple[str, ...]:
    kept = ", prompt kept" if one.get("keep_prompt") else ""
    control = ", a control" if one["role"] == "control" else ""
    accuracy = one["accuracy"] or (None, None, None)
    ratio = "-" if one["length_ratio"] is None else _told(one["length_ratio"], ".2f")
    return (
        f"{one['backend']} {one['budget']}{kept}{control}",
        _told([None if x is None else 100 * x for x in one["share"]], ".2f"),
        _told([None if x is None else 100 * x for x in accuracy], ".0f"),
        ratio,
        "-" if one["accuracy"] is None else str(one["solved_by_both"]),
    )


def _told(three: Sequence[float | None], form: str) -> str:
    estimate, low, high = three
    if estimate is None:
        return "-"
    if low is None or high is None:
        return f"{estimate:{form}}"
    return f"{estimate:{form}} [{low:{form}}, {high:{form}}]"


def sentence(one: Found) -> str:
    """A rank correlation, and what it says where its whole interval is on one side of 0."""
    cells = f"{one['cells']} cells" + (" of methods" if one["of"] == "methods" else "")
    if one["rho"] is None or one["low"] is None or one["high"] is None:
        return f"With {WITH[one['with']]}, over {cells}: too few to correlate."
    sign = 1 if one["low"] > 0 else -1 if one["high"] < 0 else 0
    said = SAID.get((one["with"], sign), "nothing is said: the interval has 0 in it")
    return (
        f"Rank correlation of the share chosen with {WITH[one['with']]}, over {cells}: "
        f"{one['rho']:.2f} [{one['low']:.2f}, {one['high']:.2f}]: {said}."
    )


def main(argv: Sequence[str] | None = None) -> int:
    sections = dict.fromkeys(("reasoner", "qwen-coder-1.5b"), section)
    return pages.of_measurements(
        __doc__,
        PAGE,
        "acceptance_page.py",
        KEPT,
        sections,
        lambda _, text, __: json.loads(text),
        argv,
    )


if __name__ == "__main__":
    sys.exit(main())
