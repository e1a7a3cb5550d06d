"""`lil report`: tables and figures again."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from experiments.cli.parser import Done, Parser
from experiments.cli.show import add_figure_flags, figure_folder, open_store, show
from experiments.report import exports

DEFAULT_STORE = "lil-out/demo"

EXAMPLES = """\
examples:
  lil report                                   the demo's tables, drawing, figures and finding
  lil report lil-out/quest --csv samples.csv   one line a sample, for a spreadsheet
  lil report --parquet samples.parquet         the same with types (needs pyarrow)
  lil report --rows table.tex --rows rows.csv  a paper's tables, and every measure
  lil report --json > rows.json

In Python: from experiments.store.store import Store; Store("lil-out/demo").frame()
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil report`."""
    parser.add_argument(
        "store", nargs="?", default=DEFAULT_STORE, help=f"folder of a sweep ({DEFAULT_STORE})"
    )
    add_figure_flags(parser)
    parser.add_argument("--csv", metavar="FILE", help="write every sample as CSV")
    parser.add_argument("--parquet", metavar="FILE", help="write every sample as Parquet")
    parser.add_argument(
        "--rows",
        metavar="FILE",
        action="append",
        default=[],
        help="write the rows: every field as .csv or .parquet, tables for readers as .md or .tex; "
        "may be given several times",
    )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Show a store, and export it where asked."""
    exports.check_files(args.csv, args.parquet, args.rows)
    notes = Console(stderr=True)
    store = Path(args.store)
    shown = show(open_store(store, notes), console, notes, figure_folder(args, store))
    exports.write_samples(shown.samples, args.csv, args.parquet)
    for file in args.rows:
        exports.write_rows(shown.rows, file)
    return Done(shown.document, shown.code)
