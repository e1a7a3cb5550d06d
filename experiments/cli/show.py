"""What a sweep ends with and a report repeats: tables, drawing, figures, one sentence."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from attention.errors import InvalidValue
from experiments.cli.parser import Parser
from experiments.cli.progress import bar
from experiments.grid.plan import build_detectors
from experiments.report import figures, measures, tables, terminal
from experiments.report.page.page import NAME, Written, write
from experiments.store import manifest
from experiments.store.samples.sample import Sample
from experiments.store.study import Results, Study
from lil import Detector


def open_store(folder: Path, notes: Console) -> Study:
    """A store as its sweeps left it; damage, and what is left out, is said on `notes`.

    Raises:
        InvalidValue: no store there.
    """
    study = Study.open(folder)
    say(study.said, notes)
    return study


def say(notices: Sequence[str], notes: Console) -> None:
    """Each notice once."""
    for notice in dict.fromkeys(notices):
        notes.print(f"lil: {notice}", markup=False, highlight=False, soft_wrap=True)


def replayed(study: Study, detectors: Sequence[Detector], notes: Console) -> Results:
    """Samples of the plan under no detector and each of these; what is missing is said."""
    with bar("replaying", len(study.plan)) as advance:
        results = study.samples(detectors, advance, texts=False, workers=os.cpu_count() or 1)
    if results.missing:
        notes.print(
            f"{results.missing} of {len(study.plan)} runs are not in the store; "
            "the sweep's own command decodes them"
        )
    return results


@dataclass(frozen=True)
class Shown:
    """Everything a report is made of."""

    samples: Sequence[Sample]
    rows: Sequence[measures.ReportRow]
    document: dict[str, Any]
    code: int = 0  # 2 where everything was shown but figures or page could not be written


def add_figure_flags(parser: Parser) -> None:
    """Where figures and page go, or that there are none."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--figures", metavar="DIR", help="folder of the figures (default: figures in the store)"
    )
    where.add_argument("--no-figures", action="store_true", help="draw none")
    page = parser.add_mutually_exclusive_group()
    page.add_argument(
        "--page", metavar="FILE", help=f"the report as one HTML file (default: {NAME} in the store)"
    )
    page.add_argument("--no-page", action="store_true", help="write none")


def figure_folder(args: argparse.Namespace, store: Path) -> Path | None:
    """What those flags say."""
    if args.no_figures:
        return None
    return Path(args.figures) if args.figures else store / "figures"


def page_file(args: argparse.Namespace, store: Path) -> Path | None:
    """What those flags say of the page."""
    if args.no_page:
        return None
    return Path(args.page) if args.page else store / NAME


def show(
    study: Study, console: Console, notes: Console, folder: Path | None, page: Path | None
) -> Shown:
    """Tables, accuracy and length drawn, figures' and the page's paths and the finding.

    Args:
        study: what to show.
        console: where the results go.
        notes: where it is said what could not be read or written.
        folder: of the figures; None draws none.
        page: the file of the page; None writes none.
    """
    results = replayed(study, build_detectors(study.config), notes)
    rows = measures.rows(results.samples, study.config.seed)
    shown = (
        tables.main_tables,
        tables.cost_tables,
        tables.sampling_tables,
        tables.table1,
        tables.table3,
        tables.penalty_tables,
    )
    for table in itertools.chain.from_iterable(make(rows, console.width) for make in shown):
        console.print(table)
    made = list(itertools.chain.from_iterable(make(rows) for make in shown))
    if any(row.backend != "full" for row in rows):
        console.print(terminal.draw(rows, width=console.width))
    paths, code = [], 0
    if folder is not None:
        try:
            paths = figures.figures(results.samples, rows, folder, _conditions(study))
        except OSError as error:  # all that is asked for is known: only the pictures are not there
            reason = InvalidValue(
                "figures", str(folder), f"a folder to write in ({error.strerror})"
            )
            _refuse(reason, notes)
            code = 2
    for path in paths:
        console.print(f"figure: {path}", highlight=False, markup=False, soft_wrap=True)
    finding = measures.finding(rows)
    about = manifest.public(study.manifest) | {
        "finding": finding,
        "figures": [str(path) for path in paths],
        "page": None,
        "runs_missing": results.missing,
        "notices": study.said,
    }
    if page is not None:
        try:
            written = write(page, study, results.samples, rows, made, about)
        except InvalidValue as error:
            _refuse(error, notes)
            code = 2
        else:
            about["page"] = str(page)
            _say_page(written, console)
    _say_spared(rows, console)
    console.print()
    console.print(finding, style="bold", highlight=False, markup=False)
    document = {"manifest": about, "rows": [row.to_dict() for row in rows]}
    return Shown(results.samples, rows, document, code)


def _conditions(study: Study) -> figures.Conditions:
    config = study.config
    return figures.Conditions(config.seed, config.dtype, config.cap, config.max_new_tokens)


def _refuse(reason: InvalidValue, notes: Console) -> None:
    notes.print(f"lil: error: {reason}", markup=False, highlight=False, soft_wrap=True)


def _say_page(written: Written, console: Console) -> None:
    few = "" if written.kept == written.of else f", {written.kept:,} of {written.of:,} traces in it"
    few += f", {written.left_out} charts or tables left out" if written.left_out else ""
    text = f"page: {written.path}{few}"
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _say_spared(rows: Sequence[measures.ReportRow], console: Console) -> None:
    plain = [row for row in rows if row.detector == "none"]
    spared = sum(row.reused_tokens for row in plain)
    failed = sum(row.errors for row in plain)
    console.print(
        f"{spared:,} tokens were not decoded again but taken from full attention, where a sparse "
        "backend still equals it; their cost is charged",
        highlight=False,
    )
    if failed:
        console.print(f"{failed} runs failed; `status` and `message` of the store say why")
