"""`lil report`: tables, figures and page again, of one store or of several side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape

from experiments.cli.console import Console
from experiments.cli.open_store import (
    Opened,
    add_figure_flags,
    add_load_flag,
    add_scorer_flag,
    add_sweep_flags,
    check_outputs,
    listing,
    opened,
    show,
    to_load,
)
from experiments.cli.parser import Done, Parser
from experiments.grid.config import check
from experiments.report import exports
from experiments.report.page.page import NAME
from experiments.store.samples.replay import with_text

DEFAULT_STORE = "lil-out/demo"

EXAMPLES = """\
examples:
  lil report                                   the demo's tables, figures and headline
  lil report --page quest.html --no-figures    one HTML file to open: figures, tables, every text
  lil report lil-out/quest --csv samples.csv   one line a sample, for a spreadsheet
  lil report --parquet samples.parquet         the same with types (needs pyarrow)
  lil report --rows table.tex --rows rows.csv  a paper's tables, and every measure
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
    parser.add_argument(
        "--detector",
        metavar="NAME[:ACTION],...",
        help="beside the sweep's own, such as cycle; module:Class loads one that is stored",
    )
    add_load_flag(parser)
    add_scorer_flag(parser)
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
    """Show stores, and export them where asked."""
    notes = Console(stderr=True)
    folders = [Path(name) for name in args.store]
    if args.sweeps:
        return Done(listing(folders, console, notes))
    check_outputs(args)
    exports.check_files(args.csv, args.parquet, args.rows)
    asked = check({"detectors": args.detector or "none"}, "--detector")["detectors"]
    load = to_load(args, asked)
    studies = opened(folders, args.sweep, notes, asked, load, args.scorer)
    several = len(studies) > 1
    results = []
    for one in studies:
        if several:
            console.rule(escape(one.label), align="left")
        folder, page = _figures(args, one, several), _page(args, one, several)
        results.append(show(one.study, console, notes, folder, page))
    parts = list(zip(studies, results, strict=True))
    if args.csv or args.parquet:
        samples = [
            s for one, shown in parts for s in with_text(shown.report.samples, one.study.store)
        ]
        labels = (
            [one.label for one, shown in parts for _ in shown.report.samples] if several else None
        )
        exports.write_samples(samples, args.csv, args.parquet, labels)
    rows = [row for shown in results for row in shown.report.rows]
    labels = [one.label for one, shown in parts for _ in shown.report.rows] if several else None
    for file in args.rows:
        exports.write_rows(rows, file, labels)
    code = max(shown.code for shown in results)
    if not several:
        return Done(results[0].document, code)
    manifests = [
        {"store": one.label, "folder": str(one.study.folder)} | shown.document["manifest"]
        for one, shown in parts
    ]
    told = {
        key: [{"store": one.label} | row for one, shown in parts for row in shown.document[key]]
        for key in ("rows", "pooled", "stopping")
    }
    return Done({"manifests": manifests, **told}, code)


def _figures(args: argparse.Namespace, one: Opened, several: bool) -> Path | None:
    """Where the figures of one of them go; several share no folder."""
    if args.figures and several:
        return Path(args.figures) / one.label.replace("/", "-")
    return Path(args.figures) if args.figures else None if args.no_figures else one.figures


def _page(args: argparse.Namespace, one: Opened, several: bool) -> Path | None:
    """Where the page of one of them goes; of several, one lies beside the other."""
    if args.no_page:
        return None
    if args.page:
        page, name = Path(args.page), one.label.replace("/", "-")
        return page.with_name(f"{page.stem}-{name}{page.suffix}") if several else page
    own = NAME if one.figures.name == "figures" else f"report-{one.figures.name}.html"
    return one.study.folder / own
