"""`lil report`: tables, figures and page again, of one store or of several side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape

from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser
from experiments.cli.reporting import Outputs, ShownReport, add_figure_flags, check_outputs, show
from experiments.cli.stores import (
    DEFAULT_STORE,
    add_load_flag,
    add_scorer_flag,
    open_stores,
    to_load,
)
from experiments.report import exports
from experiments.store.samples.replay import with_text

EXAMPLES = """\
examples:
  lil report                                   the demo's tables and figures
  lil report --page quest.html --no-figures    one HTML file: figures, tables, every text
  lil report lil-out/quest --csv samples.csv   one line a sample, for a spreadsheet
  lil report --parquet samples.parquet         the same with types (needs pyarrow)
  lil report --rows table.tex --rows rows.csv  a paper's tables, and every measure
  lil report lil-out/before lil-out/after      two stores side by side, a `store` in each row
  lil report --sweep 20260301T09               one of them alone, by the beginning of its id

In Python: from experiments.store.store import Store; Store("lil-out/demo").frame()
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil report`."""
    stores = f"folders of sweeps ({DEFAULT_STORE})"
    parser.add_argument("store", nargs="*", default=[DEFAULT_STORE], help=stores)
    group = parser.add_argument_group(
        "sweeps of a store (default: the last one and all that fit together with it: the same "
        "weights, problems, caps, sampling, seed and dtype)"
    )
    choice = "one sweep alone, by the beginning of its id"
    group.add_argument("--sweep", metavar="ID|last", help=choice)
    add_load_flag(parser)
    add_scorer_flag(parser)
    add_figure_flags(parser)
    parser.add_argument("--csv", metavar="FILE", help="write every sample as CSV")
    parser.add_argument("--parquet", metavar="FILE", help="write every sample as Parquet")
    rows = "write the rows, any number of times: all fields as .csv or .parquet, or .md or .tex"
    parser.add_argument("--rows", metavar="FILE", action="append", default=[], help=rows)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Show stores, and export them where requested."""
    folders = [Path(name) for name in args.store]
    check_outputs(args)
    exports.check_files(args.csv, args.parquet, args.rows)
    studies = open_stores(folders, args.sweep, to_load(args.load), args.scorer)
    several = len(studies) > 1
    for name in ("figures", "page"):
        if several and (path := getattr(args, name)):
            raise InvalidValue(name, path, f"no --{name} where there are several reports")
    reports: list[ShownReport] = []
    for label, study in studies:
        if several:
            console.rule(escape(label), align="left")
        reports.append(show(study, console, Outputs.of(args, study.folder)))
    both = [(*labelled, shown) for labelled, shown in zip(studies, reports, strict=True)]
    if args.csv or args.parquet:
        samples = [
            (label, sample)
            for label, study, shown in both
            for sample in with_text(shown.report.samples, study.store)
        ]
        labels = [label for label, _ in samples] if several else None
        exports.write_samples([sample for _, sample in samples], args.csv, args.parquet, labels)
    every = [(label, row) for label, _, shown in both for row in shown.report.rows]
    for file in args.rows:
        labels = [label for label, _ in every] if several else None
        exports.write_rows([row for _, row in every], file, labels)
    code = max(shown.code for shown in reports)
    if not several:
        return Done(reports[0].document, code)
    document: dict[str, object] = {
        key: [{"store": label} | row for label, _, shown in both for row in shown.document[key]]
        for key in ("rows", "pooled", "stopping")
    }
    document["manifests"] = [
        {"store": label, "folder": str(study.folder)} | shown.document["manifest"]
        for label, study, shown in both
    ]
    return Done(document, code)
