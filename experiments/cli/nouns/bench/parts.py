"""What the parts of `lil bench` are made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.parser import Done


@dataclass(frozen=True)
class Flag:
    """A flag of a part: its default, what it is, and how what is typed is read."""

    name: str
    default: Any
    line: str
    kind: Callable[[str], Any] = int


@dataclass(frozen=True)
class Part:
    """What can be measured by name."""

    line: str
    examples: str
    measure: Callable[[argparse.Namespace, Console], Done]
    flags: tuple[Flag, ...]


DEVICE = Flag("device", "cpu", "cpu or cuda", str)


def times(ratio: float | None) -> str:
    """A ratio in a cell; nothing where there is none."""
    return "" if ratio is None else f"{ratio:.1f}"


def whole(field: str, texts: list[Any]) -> list[int]:
    """Numbers of `a,b`.

    Raises:
        InvalidValue: another thing than whole numbers above 0.
    """
    if not texts or not all(str(text).isdecimal() and int(text) > 0 for text in texts):
        raise InvalidValue(
            field, ",".join(map(str, texts)), "whole numbers above 0, separated by commas"
        )
    return [int(text) for text in texts]


def conditions(console: Console, title: str, found: dict[str, Any]) -> None:
    """A table of names and values."""
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for name, value in found.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    console.print(table)
