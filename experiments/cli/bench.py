"""`lil bench`: speed of the parts."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.parser import Done, Parser

EXAMPLES = """\
examples:
  lil bench meter                    one Guardian check at 131,072 tokens
  lil bench meter --tokens 1000000
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil bench`."""
    parser.add_argument("what", choices=("meter",), help="meter: incremental against from scratch")
    parser.add_argument("--tokens", default=131_072, type=int, help="length of the text")
    parser.add_argument("--f", default=250, type=int, help="tokens between two checks")
    parser.add_argument("--repeats", default=9, type=int, help="measurements; the median counts")
    parser.add_argument("--seed", default=0, type=int)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Measure and print, conditions beside the numbers."""
    from lil import bench

    if args.tokens < 1:
        raise InvalidValue("tokens", args.tokens, "at least 1")
    with Console(stderr=True).status("measuring"):
        found = bench.meter(args.tokens, args.f, args.repeats, args.seed)
    table = Table(title=f"{args.what}, medians", title_justify="left", box=None, show_header=False)
    for name, value in found.items():
        shown = f"{value:.3f}" if isinstance(value, float) else str(value)
        table.add_row(name, shown)
    console.print(table)
    return Done(found)
