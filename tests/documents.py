"""Reading the pages: fenced blocks, console commands, numbers with their source, links.

A fenced block whose first line is a comment with a file name is that file. A `console` block has
commands after `$ `, each followed by its output, in which `...` stands for any text within a line
and, alone on a line, for any lines.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIL = "import sys; from experiments.cli import main; sys.exit(main())"
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
MARKER = re.compile(r"<!--n:(\w+)#(.+?)-->")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, first line in the page, and file name or None."""

    language: str
    text: str
    line: int
    file: str | None


@dataclass(frozen=True)
class Command:
    """A command and the output that the page shows."""

    line: int
    command: str
    shown: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        name = re.match(r"# ([\w/.-]+\.\w+)\n+", match[2])
        body = match[2][name.end() :] if name else match[2]
        line = text.count("\n", 0, match.start(2)) + 1
        yield Block(match[1], body, line, name[1] if name else None)


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    parsed: list[Command] = []
    for i, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            parsed.append(Command(block.line + i, line[2:], ""))
        else:
            last = parsed[-1]
            parsed[-1] = Command(last.line, last.command, last.shown + line + "\n")
    return parsed


def files(page: Path) -> dict[str, str]:
    """The files that a page shows, by name."""
    return {block.file: block.text for block in blocks(page) if block.file}


def run(command: str, folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a page in `folder`; `pip install` puts its packages into `site`."""
    python = [sys.executable]
    first, *rest = shlex.split(command)
    known = {"lil": [*python, "-P", "-c", LIL], "python": python, "pip": [*python, "-m", "pip"]}
    # pip has a negation of its own: 0 is what --no-build-isolation sets.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    quiet = {"PIP_QUIET": "1", "PIP_TARGET": str(site)}
    path = {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT))), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [*known[first], *rest],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **offline, **quiet, **path, "COLUMNS": "100"},
        check=False,
    )


def matches(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows."""
    pattern = ""
    for line in shown.splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            parts = [re.escape(" ".join(part.split())) for part in line.split("...")]
            pattern += " ?" + " ?[^\n]*? ?".join(parts) + " ?\n"
    lines = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, lines) is not None


def quoted(page: Path) -> Iterator[tuple[str, list[str], list[float]]]:
    """Each marker of a page: its text, the numbers printed before it, and their sources.

    `<!--n:FILE#PATH;PATH-->` names values of docs/results/FILE.json. A path has keys between `/`,
    with `~` for a space; `*100` behind it turns a share into per cent. A path to a list stands for
    all of its values.
    """
    start, text = 0, page.read_text(encoding="utf-8")
    for match in MARKER.finditer(text):
        source = json.loads((ROOT / "docs" / "results" / f"{match[1]}.json").read_text())
        values: list[float] = []
        for path in match[2].split(";"):
            keys, _, factor = path.partition("*")
            value: Any = source
            for key in keys.replace("~", " ").split("/"):
                value = value[int(key)] if isinstance(value, list) else value[key]
            listed = value if isinstance(value, list) else [value]
            values += [number * float(factor or 1) for number in listed]
        printed = NUMBER.findall(text[start : match.start()])
        yield match[0], printed[-len(values) :], values
        start = match.end()


def anchors(page: Path) -> set[str]:
    """The anchors that a code host makes of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}
