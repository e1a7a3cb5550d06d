"""Write the parameters of every backend into docs/backends.md, as the backends declare them.

    python scripts/pages/backends_page.py            # rewrite the column
    python scripts/pages/backends_page.py --check    # exit code 1 if the page is not up to date

The other columns are written by hand; tests/test_backends_page.py holds them against the backends.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attention import methods, registry

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
COLUMN = "parameters"


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(text: str) -> dict[str, dict[str, str]]:
    """The rows of the page's table by backend, each by column."""
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    header, _, *body = rows
    return {row[0].strip("`"): dict(zip(header, row, strict=True)) for row in body}


def declared(name: str) -> str:
    """Parameters of a backend with their defaults, as `lil list` prints them."""
    found = registry.parameters(methods.find(name))
    return ", ".join(f"`{p}`" for p in found)


def rendered(text: str) -> str:
    """The page with its column of parameters as it should be."""
    lines = text.splitlines()
    at = None
    for i, line in enumerate(lines):
        if not line.startswith("|"):
            continue
        row = cells(line)
        if at is None:
            at = row.index(COLUMN)
        elif not row[0].startswith("---"):
            row[at] = declared(row[0].strip("`"))
            lines[i] = "| " + " | ".join(row) + " |"
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    if not check:
        PAGE.write_text(rendered(text), encoding="utf-8")
    elif rendered(text) != text:
        print("docs/backends.md: run scripts/pages/backends_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
