"""Running a document: its files are written, its commands run in order, its output compared.

A fenced block whose first line is a comment with a file name is that file. A `console` block holds
commands after `$ `, each followed by what it prints; there `...` stands for any text within a line,
and alone on a line for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIL = "import sys; from experiments.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: number of its first line in the document.
        file: the file it is, or None.
    """

    language: str
    text: str
    line: int
    file: str | None


@dataclass(frozen=True)
class Command:
    """A command and the output the document shows."""

    line: int
    command: str
    shown: str


def blocks(document: Path) -> Iterator[Block]:
    """The fenced blocks of a document, in order."""
    text = document.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        named = re.match(r"# ([\w/.-]+\.\w+)\n+", found[2])
        body = found[2][named.end() :] if named else found[2]
        line = text.count("\n", 0, found.start(2)) + 1
        yield Block(found[1], body, line, named[1] if named else None)


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    for i, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            found.append(Command(block.line + i, line[2:], ""))
        elif found:
            last = found[-1]
            found[-1] = Command(last.line, last.command, last.shown + line + "\n")
        else:
            raise ValueError(f"line {block.line + i}: output before any command")
    return found


def files(document: Path) -> dict[str, str]:
    """The files a document shows, by name."""
    return {b.file: b.text for b in blocks(document) if b.file}


def run(command: str, folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a document in `folder`; `pip install` puts its packages into `site`."""
    python = [sys.executable]
    first, *rest = shlex.split(command)
    known = {"lil": [*python, "-P", "-c", LIL], "python": python, "pip": [*python, "-m", "pip"]}
    if first not in known:
        raise ValueError(f"not lil, python or pip: {command}")
    path = os.pathsep.join(map(str, (site, ROOT)))
    quiet = {"PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_TARGET": str(site)}
    # pip has a negation of its own: 0 is what --no-build-isolation sets.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    return subprocess.run(
        [*known[first], *rest],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **quiet,
            **offline,
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": path,
            "COLUMNS": "100",
        },
        check=False,
    )


def matches(shown: str, printed: str) -> bool:
    """Whether what was printed is what the document shows."""
    pattern = ""
    for line in shown.splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            parts = [re.escape(" ".join(p.split())) for p in line.split("...")]
            pattern += " ?" + " ?[^\n]*? ?".join(parts) + " ?\n"
    lines = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, lines) is not None
