"""Texts and names that are meant badly, and where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

#: Clears the screen, sets a title, asks the terminal, is no text, turns the line.
BAD = "\x1b[2J\x1b]0;t\x07\x1bP+q544e\x1b\\\x9b31m\u202e\x00\r"
#: The same as a file's name may have it, with markup of consoles and pages.
NAME = "q\x1b[2J\u202e[red]<img src=x onerror=alert(1)>"


class Hostile(NamedTuple):
    """A folder, and what is in it by names relative to it."""

    folder: Path
    model: str
    problems: str
    store: str
