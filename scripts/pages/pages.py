"""The parts of a page that a script writes: between two comments, one of which names the script."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

END = "<!-- end of results -->"


def put(page: Path, script: str, section: str, check: bool, name: str = "results") -> int:
    """Print a section and write it into its page; with `check`, 1 if the page has another.

    Args:
        page: the file, which has the comments already.
        script: the script's file name.
        section: Markdown.
        check: write nothing.
        name: of the section, where a page has several of one script.

    Raises:
        ValueError: the page has no place for it.
    """
    start = f"<!-- {name}: scripts/pages/{script} -->"
    before, found, rest = page.read_text().partition(start)
    old, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{page}: no place for {name} of {script}")
    print(section)
    if check:
        return int(old.strip() != section.strip())
    page.write_text(f"{before}{start}\n\n{section}\n{END}{after}")
    return 0


def from_kept(
    words: str | None,
    page: Path,
    script: str,
    kept: Path,
    section: Callable[[Any], str],
    argv: Sequence[str] | None,
) -> int:
    """A script whose one section is made of one kept JSON file, and its flag `--check`.

    Args:
        words: the script's docstring.
        page, script: see `put`.
        kept: the file.
        section: Markdown of what it has.
        argv: of the command line.
    """
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    return put(page, script, section(json.loads(kept.read_text())), args.check)


def of_measurements(
    words: str | None,
    page: Path,
    script: str,
    kept: Path,
    sections: Mapping[str, Callable[[Any], str]],
    taken: Callable[[str, str, Any], Any],
    argv: Sequence[str] | None,
) -> int:
    """A script whose sections are each made of a measurement in one kept JSON file, and its flags.

    Args:
        words, page, script, kept, argv: as above.
        sections: Markdown of what is kept, by name; the page has none of what is not.
        taken: what is kept by a name of a measurement's output and of what was kept before.
    """
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--take", nargs=2, metavar=("KIND", "FILE"), help="keep a measurement")
    args = parser.parse_args(argv)
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if args.take:
        kind, file = args.take
        if kind not in sections:
            parser.error(f"KIND: one of {', '.join(sections)}")
        known[kind] = taken(kind, Path(file).read_text(), known.get(kind))
        kept.write_text(json.dumps(known, indent=1) + "\n")
        return 0
    return max(
        put(page, script, section(known[name]), args.check, name)
        for name, section in sections.items()
        if name in known
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are words, the others numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(heads))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *rows)) + "\n"


def chance(p: float | None) -> str:
    """A p as readers have it."""
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
