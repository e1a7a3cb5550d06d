"""`lil list`: everything that has a name."""

from __future__ import annotations

import argparse
import tomllib

from rich.console import Console
from rich.table import Table

from experiments.cli.parser import Done, Parser

EXAMPLES = """\
examples:
  lil list
  lil list backends
  lil list --json
"""

KINDS = ("backends", "penalties", "detectors", "datasets", "presets", "codecs")


def add_arguments(parser: Parser) -> None:
    """Flags of `lil list`."""
    parser.add_argument("kind", nargs="?", choices=KINDS, help="one kind only")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Print names with one line each."""
    kinds = [args.kind] if args.kind else list(KINDS)
    found = {kind: _lines(kind) for kind in kinds}
    for kind, lines in found.items():
        table = Table(title=kind, title_justify="left", box=None, show_header=False, min_width=40)
        for name, line in lines.items():
            table.add_row(name, line)
        console.print(table if lines else f"{kind}: none yet")
        console.print()
    return Done(found)


def _lines(kind: str) -> dict[str, str]:
    if kind == "backends":
        import attention

        return dict(attention.describe())
    if kind == "detectors":
        from lil import detectors

        return detectors.describe()
    if kind == "datasets":
        from experiments.data import names

        return names()
    if kind == "presets":
        from experiments.config import preset_names, preset_text

        return {name: _first_comment(preset_text(name)) for name in preset_names()}
    if kind == "codecs":
        from lil import codecs

        return codecs.describe()
    from lil import penalties

    return penalties.describe()


def _first_comment(text: str) -> str:
    tomllib.loads(text)  # a preset that does not parse should not look fine here
    return text.splitlines()[0].removeprefix("#").strip()
