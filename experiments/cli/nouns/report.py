"""`lil report`: tables and figures again, of one store or of several side by side."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from attention.errors import InvalidValue
from experiments.cli.parser import Done, Parser
from experiments.cli.show import add_figure_flags, show
from experiments.cli.stores import Opened, add_sweep_flags, listing, opened
from experiments.store.sample import Sample
from experiments.store.samples import with_text
from experiments.store.store import require_writable

DEFAULT_STORE = "lil-out/demo"

EXAMPLES = """\
examples:
  lil report                                   the demo's tables, drawing, figures and finding
  lil report lil-out/quest --csv samples.csv   one line a sample, for a spreadsheet
  lil report --parquet samples.parquet         the same with types (needs pyarrow)
  lil report --json > rows.json
  lil report lil-out/before lil-out/after      two stores side by side, a `store` in each row
  lil report --sweeps                          the sweeps the store remembers
  lil report --sweep 20260301T09               one of them alone, by the beginning of its id
  lil report --sweep all                       all of them; those that do not fit, side by side

In Python: from experiments.store.store import Store; Store("lil-out/demo").frame()
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil report`."""
    parser.add_argument(
        "store", nargs="*", default=[DEFAULT_STORE], help=f"folders of sweeps ({DEFAULT_STORE})"
    )
    add_sweep_flags(parser)
    add_figure_flags(parser)
    parser.add_argument("--csv", metavar="FILE", help="write every sample as CSV")
    parser.add_argument("--parquet", metavar="FILE", help="write every sample as Parquet")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Show stores, and export them where asked."""
    notes = Console(stderr=True)
    folders = [Path(name) for name in args.store]
    if args.sweeps:
        return Done(listing(folders, console, notes))
    for file in filter(None, (args.csv, args.parquet)):
        require_writable(Path(file).parent)
    studies = opened(folders, args.sweep, notes)
    results = []
    for one in studies:
        if len(studies) > 1:
            console.rule(escape(one.label), align="left")
        results.append(show(one.study, console, notes, _figures(args, one, len(studies) > 1)))
    if args.csv or args.parquet:
        samples = [
            _flat(sample) | ({"store": one.label} if len(studies) > 1 else {})
            for one, shown in zip(studies, results, strict=True)
            for sample in with_text(shown.samples, one.study.store)
        ]
        _export(samples, args.csv, args.parquet)
    code = max(shown.code for shown in results)
    if len(studies) == 1:
        return Done(results[0].document, code)
    labelled = [
        ({"store": one.label, "folder": str(one.study.folder)}, shown.document)
        for one, shown in zip(studies, results, strict=True)
    ]
    manifests = [where | document["manifest"] for where, document in labelled]
    rows = [{"store": w["store"]} | row for w, document in labelled for row in document["rows"]]
    return Done({"manifests": manifests, "rows": rows}, code)


def _figures(args: argparse.Namespace, one: Opened, several: bool) -> Path | None:
    """Where the figures of one of them go; several share no folder."""
    if args.figures and several:
        return Path(args.figures) / one.label.replace("/", "-")
    return Path(args.figures) if args.figures else None if args.no_figures else one.figures


def _export(samples: Sequence[dict[str, object]], csv: str | None, parquet: str | None) -> None:
    import pandas as pd

    frame = pd.DataFrame(samples)
    try:
        if csv:
            frame.to_csv(csv, index=False)
        if parquet:
            frame.to_parquet(parquet, index=False)
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
