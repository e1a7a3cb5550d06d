"""Write the tables of docs/lossless.md from docs/lossless.json.

python scripts/measuring/lossless_readings.py > FILE
python scripts/pages/lossless_page.py --take spared FILE
python scripts/pages/lossless_page.py --take checked FILE    # of check_lossless.py
python scripts/pages/lossless_page.py --take long FILE       # of bench/lossless_speed.py --json
python scripts/pages/lossless_page.py
python scripts/pages/lossless_page.py --check    # exit code 1 if the page differs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "lossless.md", ROOT / "docs" / "lossless.json"
Row = Mapping[str, Any]


def spared(rows: Sequence[Row]) -> str:
    """What drafts spare."""
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


def checked(rows: Sequence[Row]) -> str:
    """Whether outputs are full attention's, and draws."""
    texts, draws = ([row for row in rows if ("draws" in row) is drawn] for drawn in (False, True))
    counts = [*dict.fromkeys(row["drafts"] for row in texts)]
    lines = []
    for name, budget in dict.fromkeys((row["backend"], row["budget"]) for row in texts):
        some = {row["drafts"]: row for row in texts
                if (row["backend"], row["budget"]) == (name, budget)}  # fmt: skip
        same, of = (sum(row[key] for row in some.values()) for key in ("same", "prompts"))
        kept = (f"{100 * some[k]['kept'] / (some[k]['kept'] + some[k]['refused']):.1f}"
                for k in counts)  # fmt: skip
        lines.append((f"{name} {budget}", f"{same:,} of {of:,}", *kept))
    heads = ("backend", "outputs the same", *(f"drafts kept at {k}, %" for k in counts))
    same, of = (sum(row[key] for row in texts) for key in ("same", "prompts"))
    names = ", ".join(f"`{row['backend']}`" for row in draws)
    chances = ", ".join(dict.fromkeys(f"{row['p']:.2f}" for row in draws))
    alike = " (the same draws in all, as they should be)" if "," not in chances else ""
    return (
        f"{pages.table(heads, lines)}\n- In all {same:,} of {of:,} outputs are full attention's.\n"
        f"- {draws[0]['draws']:,} draws of one token at temperature 1, of a model of random "
        f"weights, against full attention's probabilities: under {names} p by chi-square is "
        f"{chances}{alike}; below 0.001 the check fails.\n"
    )  # fmt: skip


def long(found: Row) -> str:
    """Keys and seconds behind long contexts."""
    heads = ("context", "", "drafts", "tokens", "the same", "drafts kept, %", "keys",
             "ms a token", "seconds")  # fmt: skip
    lines = [
        (f"{row['context']:,}", row["backend"],
         "-" if row["drafts"] is None else str(row["drafts"]), str(row["tokens"]), str(row["same"]),
         "-" if row["kept"] is None else f"{100 * row['kept']:.1f}", f"{row['keys']:.2f}",
         f"{row['ms_a_token']:.1f}", f"{row['seconds']:.2f}")
        for row in found["rows"]
    ]  # fmt: skip
    return (
        f"{pages.table(heads, lines, left=2)}\n- {found['model']}, float32, the source of "
        f"{found['source']}; {found['device']}, {found['threads']} threads, "
        f"{found['repeats']} turns.\n"
    )  # fmt: skip


SECTIONS = {"spared": spared, "checked": checked, "long": long}


def taken(kind: str, text: str, _: Any) -> Any:
    """What is kept of a measurement's output; the check tells a row as soon as it has it."""
    return [*map(json.loads, text.splitlines())] if kind == "checked" else json.loads(text)


def main(argv: Sequence[str] | None = None) -> int:
    return pages.of_measurements(__doc__, PAGE, "lossless_page.py", KEPT, SECTIONS, taken, argv)


if __name__ == "__main__":
    sys.exit(main())
