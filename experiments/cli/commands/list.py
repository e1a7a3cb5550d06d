"""`lil list`: everything that has a name."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser

if TYPE_CHECKING:
    from attention.registry import Entry, Parameter

EXAMPLES = """\
examples:
  lil list
  lil list backends
  lil list --json
"""

#: Where the classes of a kind are found by name.
_MODULES = {
    "backends": "attention.methods",
    "penalties": "lil.penalties",
    "detectors": "lil.detectors",
    "codecs": "lil.compression.codecs",
}

KINDS = ("backends", "penalties", "detectors", "datasets", "presets", "codecs")


def add_arguments(parser: Parser) -> None:
    """Flags of `lil list`."""
    parser.add_argument("kind", nargs="?", choices=KINDS, help="one kind only")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Print names, and what each is."""
    kinds = [args.kind] if args.kind else list(KINDS)
    found: dict[str, object] = {}
    for kind in kinds:
        table = Table(title=kind, title_justify="left", box=None, show_header=False, min_width=40)
        module = importlib.import_module(_MODULES[kind]) if kind in _MODULES else None
        if module is not None:
            entries = module.known()
            _list_entries(entries, table)
            lines = {entry.name: entry.line for entry in entries}
            found[kind] = list(map(_document, entries)) if kind == "backends" else lines
        else:
            lines = _lines(kind)
            for name, line in lines.items():
                table.add_row(name, line)
            found[kind] = lines
        console.print(table if found[kind] else f"{kind}: none yet")
        console.print()
    return Done(found)


def _list_entries(entries: Iterable[Entry], table: Table) -> None:
    """Fill the table; what is wrong with a name, or what else goes by it, stands beside it."""
    from attention.registry import OWN

    for entry in entries:
        lines = [entry.line] if entry.error else [entry.source, _declared(entry.parameters)]
        if entry.package != OWN:
            lines.append(f"from {entry.package}")
        table.add_row(entry.name, Text("\n".join(lines)))


def _document(entry: Entry) -> dict[str, object]:
    parameters = [
        {"name": one.name, "required": one.required, "default": _plain(one.default)}
        for one in entry.parameters
    ]
    return {
        "name": entry.name,
        "package": entry.package,
        "source": entry.source,
        "parameters": parameters,
        "error": entry.error,
    }


def _plain(default: object) -> object:
    """A default as JSON has it; in words where it has none, which another package may do."""
    try:
        json.dumps(default, allow_nan=False)
    except (TypeError, ValueError):
        return repr(default)
    return default


def _declared(parameters: Sequence[Parameter]) -> str:
    return ", ".join(map(str, parameters)) or "no parameters"


def _lines(kind: str) -> dict[str, str]:
    if kind == "datasets":
        from experiments.grid.data.sets import FORMS, names

        return {**names(), **FORMS}
    from experiments.grid.presets import preset_names, preset_text

    return {name: _about(preset_text(name)) for name in preset_names()}


def _about(text: str) -> str:
    """What a preset says of itself: the comment it begins with."""
    tomllib.loads(text)  # a preset that does not parse should not look fine here
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)
