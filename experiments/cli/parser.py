"""The argument parser of every noun, and what a command gives back."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from experiments.cli.output import shown

#: A flag that takes a list is named by one of what it takes, so that it is the same for one and
#: for several; in the plural it is understood.
_PLURALS = {
    f"--{one}": f"--{several}"
    for one, several in (
        ("model", "models"),
        ("dataset", "datasets"),
        ("column", "columns"),
        ("backend", "backends"),
        ("budget", "budgets"),
        ("penalty", "penalties"),
        ("detector", "detectors"),
    )
}
_OTHER_SPELLINGS = _PLURALS | {several: one for one, several in _PLURALS.items()}


@dataclass(frozen=True)
class Done:
    """What a command gives back: the document `--json` prints, and the exit code."""

    document: Any
    code: int = 0


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and whose options are never abbreviated."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As its base, flags of lists in the singular or the plural."""
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        read = [self._spelt(one) for one in given[:end]] + given[end:]
        return super().parse_known_args(read, namespace)

    def _spelt(self, argument: str) -> str:
        flag, equals, value = argument.partition("=")
        other = _OTHER_SPELLINGS.get(flag)
        known = self._option_string_actions
        if other is None or flag in known or other not in known:
            return argument
        print(f"lil: {flag} is read as {other}", file=sys.stderr)
        return other + equals + value

    def error(self, message: str) -> NoReturn:
        """Print one message and leave with exit code 2."""
        print(f"lil: error: {shown(message)} (see '{self.prog} --help')", file=sys.stderr)
        raise SystemExit(2)

    def option_strings(self) -> list[str]:
        """Every option, to look for the nearest match of a wrong one."""
        return list(self._option_string_actions)


def add_json(parser: Parser) -> None:
    """The flag `--json`, which may stand before a noun, behind it and behind a part of it."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,  # the last parser's would undo what an earlier one was told
        help="one JSON document on stdout, everything else on stderr",
    )


def nearest(value: str, choices: Iterable[str]) -> str:
    """A hint at the nearest choice, or nothing."""
    found = difflib.get_close_matches(value, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


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
