"""Write the table of docs/lossless.md from docs/lossless.json.

python scripts/measuring/lossless_readings.py > docs/lossless.json
python scripts/pages/lossless_page.py
python scripts/pages/lossless_page.py --check    # exit code 1 if the page differs
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "lossless.md", ROOT / "docs" / "lossless.json"


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table."""
    lines = [
        (f"{row['backend']} {row['budget']}", str(row["drafts"]),
         f"{row['same']} of {row['problems']}",
         f"{100 * row['accepted'] / row['looked_at']:.1f} of {row['looked_at']:,}",
         f"{row['keys']:.2f}", f"{row['steps']:.2f}", f"{row['checks']:.2f}")
        for row in rows
    ]  # fmt: skip
    heads = ("backend", "drafts", "outputs the same", "drafts kept, %", "keys",
             "draft steps a token", "checks a token")  # fmt: skip
    return pages.table(heads, lines)


def main(argv: Sequence[str] | None = None) -> int:
    return pages.from_kept(__doc__, PAGE, "lossless_page.py", KEPT, section, argv)


if __name__ == "__main__":
    sys.exit(main())
