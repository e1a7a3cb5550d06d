"""What the programs of this folder share: flags, one message for a wrong value, tables, JSON."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from attention.errors import InvalidValue

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        head: above it.
        field: of a row; a cell is empty where it is None.
        form: of a number, as in a format string.
        scale: by which it is multiplied.
        words: whether it is read from the left.
    """

    head: str
    field: str
    form: str = ""
    scale: float = 1
    words: bool = False

    def cell(self, row: Row) -> str:
        """Its text."""
        value = row[self.field]
        if value is None or self.words:
            return str(value or "")
        return format(value * self.scale, self.form)


def table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Rows under a title."""
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        grid.add_column(column.head, justify="left" if column.words else "right")
    for row in rows:
        grid.add_row(*(column.cell(row) for column in columns))
    return grid


def conditions(result: Row) -> Table:
    """Names and values of what is no row."""
    grid = Table(title="conditions", title_justify="left", box=None, show_header=False)
    for name, value in result.items():
        if name != "rows":
            grid.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    return grid


def counts(text: str) -> list[int]:
    """Whole numbers above 0, as in `a,b`.

    Raises:
        ArgumentTypeError: other things.
    """
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected whole numbers above 0, separated by commas"
        )
    return [int(part) for part in parts]


def names(text: str) -> list[str]:
    """The parts of `a,b,c`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the module's docstring as its help, and `--json`."""
    flags = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    flags.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return flags


@contextlib.contextmanager
def measuring() -> Iterator[Callable[[str], None]]:
    """Keep stdout free meanwhile; yields a function that shows what is measured next."""
    with (
        contextlib.redirect_stdout(sys.stderr),
        Console(stderr=True).status("measuring") as status,
    ):
        yield status.update


def printed(result: Row, as_json: bool, *parts: Table | str) -> int:
    """The document, or its tables and sentences; exit code 0."""
    if as_json:
        print(json.dumps(result, allow_nan=False))
        return 0
    console = Console()
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False)
        else:
            console.print(part)
    return 0


def one_message(main: Callable[..., int]) -> Callable[..., int]:
    """A wrong value is one line on stderr and exit code 2."""

    @functools.wraps(main)
    def ended(argv: Sequence[str] | None = None) -> int:
        try:
            return main(argv)
        except InvalidValue as error:
            print(f"error: {error}", file=sys.stderr)
            return 2

    return ended
