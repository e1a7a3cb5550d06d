"""The argument parser of every noun, what values are typed as, and what a command gives back."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from attention.errors import InvalidValue
from experiments.cli.output import shown


@dataclass(frozen=True)
class Done:
    """What a command gives back: the document `--json` prints, and the exit code."""

    document: Any
    code: int = 0


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and whose options are never abbreviated."""

    def __init__(self, **settings: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=form, **settings)

    def error(self, message: str) -> NoReturn:
        """Print one message and leave with exit code 2."""
        print(f"lil: error: {shown(message)} (see '{self.prog} --help')", file=sys.stderr)
        raise SystemExit(2)

    def option_strings(self) -> list[str]:
        """Every option, to look for the nearest match of a wrong one."""
        return list(self._option_string_actions)


def add_json(parser: Parser) -> None:
    """Add the flag `--json`, which may stand before a noun and after it."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,  # a default of the last parser would undo an earlier flag
        help="one JSON document on stdout, everything else on stderr",
    )


def nearest(value: str, choices: Iterable[str]) -> str:
    """A hint at the nearest choice, or nothing."""
    matches = difflib.get_close_matches(value, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def typed(value: Any) -> str:
    """A default as one would type it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def comma_list(text: str) -> list[str]:
    """The parts of `a,b,c`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_number(field: str, text: str, least: int) -> int:
    """A whole number as it was typed."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise InvalidValue(field, text, f"a whole number, at least {least}")
    return int(text)
