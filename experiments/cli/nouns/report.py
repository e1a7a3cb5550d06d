"""`lil report`: tables and figures again."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.console import Console

from attention.errors import InvalidValue
from experiments.cli.parser import Done, Parser
from experiments.cli.show import add_figure_flags, figure_folder, open_store, show
from experiments.store.outputs import replace_whole
from experiments.store.sample import Sample
from experiments.store.store import require_writable

DEFAULT_STORE = "lil-out/demo"

EXAMPLES = """\
examples:
  lil report                                   the demo's tables, drawing, figures and finding
  lil report lil-out/quest --csv samples.csv   one line a sample, for a spreadsheet
  lil report --parquet samples.parquet         the same with types (needs pyarrow)
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


def command(args: argparse.Namespace, console: Console) -> Done:
    """Show a store, and export it where asked."""
    for file in filter(None, (args.csv, args.parquet)):
        require_writable(Path(file).parent)
    notes = Console(stderr=True)
    store = Path(args.store)
    shown = show(open_store(store, notes), console, notes, figure_folder(args, store))
    if args.csv or args.parquet:
        _export(shown.samples, args.csv, args.parquet)
    return Done(shown.document, shown.code)


def _export(samples: object, csv: str | None, parquet: str | None) -> None:
    import pandas as pd

    assert isinstance(samples, list)
    frame = pd.DataFrame([_flat(sample) for sample in samples])
    try:
        if csv:
            replace_whole(Path(csv), frame.to_csv(index=False).encode())
        if parquet:
            replace_whole(Path(parquet), frame.to_parquet(index=False))
    except ImportError as error:
        allowed = "CSV, or the package pyarrow for Parquet (pip install pyarrow)"
        raise InvalidValue("parquet", parquet, allowed) from error
    except OSError as error:
        raise InvalidValue(
            "file", csv or parquet, f"a file that can be written ({error})"
        ) from error


def _flat(sample: Sample) -> dict[str, object]:
    """A sample's fields; the two compound ones as text, which every format can hold."""
    values = dataclasses.asdict(sample)
    values["backend_params"] = ", ".join(f"{k}={v}" for k, v in sample.backend_params)
    values["curve"] = " ".join(f"{t}:{raw}:{small}" for t, raw, small in sample.curve)
    return values
