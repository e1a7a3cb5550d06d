"""The part of a page that a script writes: between two comments, one of which names the script."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end of results -->"


def put(page: Path, script: str, section: str, check: bool) -> int:
    """Print a section and write it into its page; with `check`, 1 if the page has another."""
    start = f"<!-- results: scripts/pages/{script} -->"
    before, _, rest = page.read_text().partition(start)
    old, _, after = rest.partition(END)
    print(section)
    if check:
        return int(old.strip() != section.strip())
    page.write_text(f"{before}{start}\n\n{section}\n{END}{after}")
    return 0
