"""`lil list`: everything that has a name."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

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
            registered = _registered(module.known(), table)
            lines = {one["name"]: _line(one) for one in registered}
            found[kind] = registered if kind == "backends" else lines
        else:
            lines = _lines(kind)
            for name, line in lines.items():
                table.add_row(name, line)
            found[kind] = lines
        console.print(table if found[kind] else f"{kind}: none yet")
        console.print()
    return Done(found)


def _registered(known: Iterable[Entry], table: Table) -> list[dict[str, Any]]:
    """Fill the table; what is wrong with a name, or what else goes by it, stands beside it."""
    from attention.registry import OWN

    found = []
    for k in known:
        lines = [f"broken: {k.error}"] if k.error else [k.source, _declared(k.parameters)]
        if k.package != OWN:
            lines.append(f"from {k.package}")
        table.add_row(k.name, Text("\n".join(lines)))
        found.append(
            {
                "name": k.name,
                "package": k.package,
                "source": k.source,
                "parameters": [
                    {"name": p.name, "required": p.required, "default": _plain(p.default)}
                    for p in k.parameters
                ],
                "error": k.error,
            }
        )
    return found


def _line(one: dict[str, Any]) -> str:
    return str(one["source"]) if one["error"] is None else f"broken: {one['error']}"


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
        from experiments.grid.data.sets import names

        return names()
    from experiments.grid.presets import preset_names, preset_text

    return {name: _about(preset_text(name)) for name in preset_names()}


def _about(text: str) -> str:
    """What a preset says of itself: the comment it begins with."""
    tomllib.loads(text)  # a preset that does not parse should not look fine here
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)
