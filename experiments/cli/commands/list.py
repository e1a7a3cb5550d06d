"""`lil list`: everything that has a name."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json

from rich.table import Table
from rich.text import Text

from attention.registry import OWN, Entry
from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser
from experiments.grid.data.sets import FORMS, names
from experiments.grid.presets import preset_names, preset_text

EXAMPLES = """\
examples:
  lil list
  lil list backends
  lil list --json
"""

#: Where the classes of a kind are looked up by name.
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
    document: dict[str, object] = {}
    for kind in [args.kind] if args.kind else KINDS:
        if kind in _MODULES:
            entries = importlib.import_module(_MODULES[kind]).known()
            lines = {entry.name: "\n".join(_lines(entry)) for entry in entries}
            short = {entry.name: entry.line for entry in entries}
            document[kind] = list(map(_described, entries)) if kind == "backends" else short
        else:
            document[kind] = lines = {**names(), **FORMS} if kind == "datasets" else _presets()
        table = Table(title=kind, title_justify="left", box=None, show_header=False, min_width=40)
        for name, line in lines.items():
            table.add_row(name, Text(line))
        console.print(table, "")
    return Done(document)


def _lines(entry: Entry) -> list[str]:
    """What a name is, with its parameters and its package, or what is wrong with it."""
    parameters = ", ".join(map(str, entry.parameters)) or "no parameters"
    lines = [entry.line] if entry.error else [entry.source, parameters]
    return lines if entry.package == OWN else [*lines, f"from {entry.package}"]


def _described(entry: Entry) -> dict[str, object]:
    parameters = [
        {"name": p.name, "required": p.required, "default": _plain(p.default)}
        for p in entry.parameters
    ]
    values = {key: getattr(entry, key) for key in ("name", "package", "source", "error")}
    return values | {"parameters": parameters}


def _plain(default: object) -> object:
    """A default as JSON has it; in words where it has none, which another package may do."""
    try:
        json.dumps(default, allow_nan=False)
    except (TypeError, ValueError):
        return repr(default)
    return default


def _presets() -> dict[str, str]:
    """Each preset with the comment it begins with."""
    lines = {}
    for name in preset_names():
        comment = itertools.takewhile(lambda x: x.startswith("#"), preset_text(name).splitlines())
        lines[name] = " ".join(line.removeprefix("#").strip() for line in comment)
    return lines
