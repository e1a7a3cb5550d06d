"""Which detectors stop texts that nobody would call a loop: code, manuals, answers; tables apart.

    python scripts/checks/check_ordinary.py                # every detector of text, two minutes
    python scripts/checks/check_ordinary.py --detector "recurrence,cycle(repeats=3)" --json

The files are chosen by a rule, not by hand: of the Python that runs this, every fourth file of the
standard library (tests left out) and every topic of its manual; of what is installed beside it,
each description and licence, a text once. At least 500 tokens each, of which the first 8,000 are
watched; a token is a word with the blank before it, a run of signs or of white space. Tables are
the JSON and CSV files of both. Answers are those of `ordinary_answers.py`, which repeat themselves
because they were asked to; loops are texts that never end. No prompt opens a thinking part: what
a detector stops while a model thinks is told by `outside=0`. Exit code 1 if a detector that
is not known for it stops more than one ordinary text in a hundred, or an answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from ordinary_answers import answers, loops
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.grid.detectors import build_detectors
from experiments.grid.presets import load
from experiments.store.labels import labels
from lil import Detector

TOKEN = re.compile(r" ?\w+| ?[^\w\s]+|\s+")
LEAST, MOST, EVERY = 500, 8000, 4
NOT_ORDINARY = {"tables", "loops"}
ANSWERS = {"lines", "zeros", "records", "verse", "prose"}
ALLOWED = 0.01
DETECTORS = "guardian,guardian(f=250),cycle,cycle(outside=0),recurrence,recurrence(outside=0)"


def files() -> Iterator[tuple[str, str, str]]:
    """Kind, name and text, in a fixed order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    installed = Path(sysconfig.get_paths()["purelib"])
    sources = [
        path
        for path in sorted(library.rglob("*.py"))
        if not {"test", "tests", "idle_test", "site-packages"} & set(path.parts)
    ]
    for path in sources[::EVERY]:
        yield "code", path.relative_to(library).as_posix(), path.read_text(errors="replace")
    for name, text in sorted(topics.items()):
        yield "manual", name, text
    for path in sorted(installed.glob("*.dist-info/METADATA")):
        yield "descriptions", path.parent.stem, path.read_text(errors="replace")
    for path in sorted(installed.glob("*.dist-info/**/*")):
        if path.is_file() and re.match("(licen[sc]e|copying|notice)", path.name, re.IGNORECASE):
            told = path.relative_to(installed).as_posix()
            yield "licences", told, path.read_text(errors="replace")
    for root in (library, installed):
        for path in sorted(root.rglob("*")):
            inside = root == library and "site-packages" in path.parts
            if path.suffix in (".json", ".csv", ".tsv") and path.is_file() and not inside:
                yield "tables", path.relative_to(root).as_posix(), path.read_text(errors="replace")
    yield from answers()
    for name, text in loops():
        yield "loops", name, text


def words(text: str) -> list[bytes]:
    """A text in tokens."""
    return [match.group().encode() for match in TOKEN.finditer(text)]


def texts() -> Iterator[tuple[str, str, list[bytes]]]:
    """Kind, name and tokens of the texts that are long enough, each once."""
    seen = set()
    for kind, name, text in files():
        pieces = words(text[: MOST * 40])[:MOST]
        digest = hashlib.sha256(b"".join(pieces)).digest()
        if (len(pieces) >= LEAST or kind in ANSWERS) and digest not in seen:
            seen.add(digest)
            yield kind, name, pieces


def measured(detectors: list[Detector], console: Console) -> dict[str, Any]:
    """How many texts of each kind there are, and which of them each detector stops."""
    counts: dict[str, int] = {}
    digest = hashlib.sha256()
    names = labels(detectors)
    stopped: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    for kind, text, pieces in track(list(texts()), "watching", console=console, transient=True):
        counts[kind] = counts.get(kind, 0) + 1
        digest.update(b"".join(pieces))
        for name, detector in zip(names, detectors, strict=True):
            if detector.watch().update(pieces) is not None:
                stopped[name].setdefault(kind, []).append(text)
    return {
        "python": platform.python_version(),
        "digest": digest.hexdigest()[:16],
        "files": counts,
        "stopped": stopped,
    }


def shown(found: dict[str, Any]) -> tuple[Table, list[str]]:
    """A table, and the names of detectors that stop too many ordinary files."""
    counts = found["files"]
    ordinary = sum(count for kind, count in counts.items() if kind not in NOT_ORDINARY)
    table = Table(title="files stopped", title_justify="left", box=None)
    table.add_column("detector")
    for kind, count in counts.items():
        table.add_column(f"of {count} {kind}", justify="right")
    table.add_column(f"of {ordinary} ordinary", justify="right")
    many = []
    for name, kinds in found["stopped"].items():
        of_kind = [len(kinds.get(kind, ())) for kind in counts]
        total = sum(n for n, k in zip(of_kind, counts, strict=True) if k not in NOT_ORDINARY)
        table.add_row(name, *map(str, of_kind), f"{total} ({total / ordinary:.1%})")
        if total > ALLOWED * ordinary or ANSWERS & kinds.keys():
            many.append(name)
    return table, many


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--detector", default=DETECTORS, help="as `lil sweep --detector` has them")
    parser.add_argument("--json", action="store_true", help="one document, names of files in it")
    args = parser.parse_args()
    notes = Console(stderr=True)
    asked = build_detectors(load("stopping", {"detectors": args.detector}))
    # What follows a verdict changes nothing here, and hidden states there are none.
    stopping = [dataclasses.replace(one, on_stop="stop") for one in asked if not one.signals]
    detectors = list(dict.fromkeys(stopping))
    found = measured(detectors, notes)
    table, many = shown(found)
    notes.print(table)
    if args.json:
        print(json.dumps(found, indent=1))
    return int(any(not name.startswith("guardian") and "outside=0" not in name for name in many))


if __name__ == "__main__":
    sys.exit(main())
