"""Which stores and sweeps a command is about, and what is shown of them: tables, figures, a page,
the headline.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from attention.errors import InvalidValue
from attention.spec import IMPORT_PATH
from experiments.cli.console import Console
from experiments.cli.parser import Parser
from experiments.cli.progress import bar
from experiments.grid.stored import paths_in, paths_set
from experiments.report import figures, tables
from experiments.report.chart_sets import chart_sets
from experiments.report.exports import check_file
from experiments.report.page.page import NAME, PageFile, write
from experiments.report.report import Report, make_report
from experiments.store import manifest
from experiments.store.files.filesystem import is_locked, require_writable
from experiments.store.labels import folder_labels
from experiments.store.study import Study
from experiments.store.sweeps import read_all
from lil import Detector


def open_store(
    folder: Path, notes: Console, load: Collection[str] = (), scorer: str | None = None
) -> Study:
    """A store as its sweeps left it; damage, and what is left out, is said on `notes`.

    Args:
        folder: of the store.
        notes: where it is said.
        load: import paths that were typed.

    Raises:
        InvalidValue: no store there, or a scorer of one's own that it does not name.
    """
    study = Study.open(folder, load=load).judged_by(scorer)
    say(study.warnings, notes)
    return study


def say(notices: Sequence[str], notes: Console) -> None:
    """Each notice once."""
    for notice in dict.fromkeys(notices):
        notes.print(f"lil: {notice}", markup=False, highlight=False, soft_wrap=True)


def report_of(study: Study, detectors: Sequence[Detector], notes: Console) -> Report:
    """The report of a study under no detector and each of these; what is missing is printed."""
    with bar("replaying", len(study.plan)) as advance:
        samples = study.samples(detectors, advance, workers=os.cpu_count() or 1)
    report = make_report(study, samples)
    if report.missing:
        notes.print(
            f"{report.missing} of {len(study.plan)} runs are not in the store; "
            "the sweep's own command decodes them"
        )
    return report


@dataclass(frozen=True)
class ShownReport:
    """A report that was shown, and the same as a document."""

    report: Report
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


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse what those flags name if it could not be written, before any work.

    Raises:
        InvalidValue: no file, no folder, or a place that cannot be written.
    """
    if args.page is not None:
        check_file("page", args.page)
    if args.figures == "":
        raise InvalidValue("figures", args.figures, "a folder")
    if args.figures is not None:
        require_writable(Path(args.figures), "figures")


def show(
    study: Study, console: Console, notes: Console, folder: Path | None, page: Path | None
) -> ShownReport:
    """Print tables, the figures' and the page's paths and the headline, and write those files.

    Args:
        study: what to show.
        console: where the results go.
        notes: for what could not be read or written.
        folder: of the figures; None draws none.
        page: the file of the page; None writes none.
    """
    report = report_of(study, study.detectors, notes)
    grids = tables.every_grid(report)
    for grid in grids:
        console.print(tables.rich_table(grid, console.width))
    sets = chart_sets(report)
    paths: list[Path] = []
    written: str | None = None
    errors: list[InvalidValue] = []
    about = manifest.public(study.manifest)
    if folder is not None:
        try:
            paths = figures.draw(report, sets, folder)
        except OSError as error:
            allowed = f"a folder to write in ({error.strerror})"
            errors.append(InvalidValue("figures", str(folder), allowed))
    if page is not None:
        try:
            written = _described(write(page, report, sets, grids, about))
        except InvalidValue as error:
            errors.append(error)
    for line in [*(f"figure: {path}" for path in paths), *filter(None, [written])]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if errors:
        line = f"lil: error: {'; '.join(map(str, errors))}"
        notes.print(line, markup=False, highlight=False, soft_wrap=True)
    _print_counts(report, console)
    console.print()
    console.print(report.headline, style="bold", highlight=False, markup=False)
    about |= {
        "headline": report.headline,
        "figures": [str(path) for path in paths],
        "page": None if written is None else str(page),
        "runs_missing": report.missing,
        "notices": list(report.notices),
    }
    return ShownReport(report, document_of(report, about), 2 if errors else 0)


def document_of(report: Report, about: Mapping[str, Any]) -> dict[str, Any]:
    """A report as JSON takes it."""
    return {
        "manifest": dict(about),
        "rows": [row.to_dict() for row in report.rows],
        "pooled": [row.to_dict() for row in report.pooled],
        "stopping": [asdict(pool) for pool in report.pools],
    }


def _described(page: PageFile) -> str:
    line = f"page: {page.path}"
    if page.packed < page.of:
        line += f", {page.packed:,} of {page.of:,} traces in it"
    return line + (f", {page.left_out} charts or tables left out" if page.left_out else "")


def _print_counts(report: Report, console: Console) -> None:
    """Tokens that were not decoded again, runs that failed, and what the sweeps were warned of."""
    plain = [sample for sample in report.samples if sample.detector == "none"]
    reused = sum(sample.reused_tokens for sample in plain)
    failed = sum(sample.status in ("error", "out_of_memory") for sample in plain)
    console.print(
        f"{reused:,} tokens were not decoded again but taken from full attention, where a sparse "
        "backend still equals it; their cost is charged",
        highlight=False,
    )
    if failed:
        console.print(f"{failed} runs failed; `status` and `message` of the store say why")
    for notice in report.notices:
        if notice not in report.study.warnings:  # those were printed when it was opened
            console.print(notice, markup=False, highlight=False)


# ---------------------------------------------------------------- which stores and sweeps


@dataclass(frozen=True)
class Opened:
    """One study, what it is called beside the others, and where its figures go by default."""

    label: str
    study: Study
    figures: Path


def add_sweep_flags(parser: Parser) -> None:
    """Which sweeps of a store are shown."""
    group = parser.add_argument_group(
        "sweeps of a store (default: the last one and all that fit together with it: the same "
        "weights, problems, caps, sampling, seed and dtype)"
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--sweep",
        metavar="ID|last|all",
        help="one sweep alone, by the beginning of its id; or all, those that fit side by side",
    )
    which.add_argument("--sweeps", action="store_true", help="list them instead of results")


def add_load_flag(parser: Parser | argparse._ArgumentGroup) -> None:
    """Which classes may be imported that a store names."""
    parser.add_argument(
        "--load",
        metavar="module:Class,...",
        help="import these where the store names them, such as a method of yours or a codec",
    )


def to_load(
    args: argparse.Namespace, detectors: Iterable[str] = (), settings: Iterable[str] = ()
) -> frozenset[str]:
    """The import paths that were typed.

    Args:
        args: parsed flags, --load among them.
        detectors, settings: as they were typed.

    Raises:
        InvalidValue: --load has something else.
    """
    given = [path.strip() for path in (args.load or "").split(",") if path.strip()]
    for path in given:
        if not IMPORT_PATH.fullmatch(path):
            raise InvalidValue("load", path, "import paths module:Class, separated by commas")
    return frozenset([*given, *paths_in(detectors), *paths_set(settings)])


def add_scorer_flag(parser: Parser) -> None:
    """A scorer of one's own that a store's problems are judged by."""
    parser.add_argument(
        "--scorer",
        metavar="MODULE:FUNCTION|gym",
        help="import the scorer of yours that the store names, or ask reasoning-gym of its "
        "generators' problems; nothing a store names is run by itself",
    )


def opened(
    folders: Sequence[Path],
    sweep: str | None,
    notes: Console,
    detectors: Sequence[str] = (),
    load: Collection[str] = (),
    scorer: str | None = None,
) -> list[Opened]:
    """The studies a command line asks for; what a reader should know of them is said on `notes`.

    Args:
        folders, sweep: which.
        notes: where it is said.
        detectors: shown beside those of the stores, as they were typed.
        load: import paths that were typed.

    Raises:
        InvalidValue: no store there, no such sweep, a store given twice, or a scorer that none of
            them names.
    """
    _require_apart(folders)
    if len(folders) > 1 and sweep not in (None, "last", "all"):
        raise InvalidValue("sweep", sweep, "last or all where there are several stores")
    found = []
    for folder, label in zip(folders, folder_labels(folders), strict=True):
        every = sweep == "all"
        studies = Study.each(folder, load) if every else [Study.open(folder, sweep, load)]
        for study in (one.with_detectors(detectors) for one in studies):
            one = len(studies) == 1
            newest = study.sweeps[0].id
            figures = folder / "figures" if one else folder / "figures" / newest
            found.append(Opened(label if one else f"{label}@{newest}", study, figures))
    if scorer is not None:
        asked = [one for one in found if one.study.needs_any(scorer)] or found[:1]
        judged = {one.label: one.study.judged_by(scorer) for one in asked}
        found = [replace(one, study=judged.get(one.label, one.study)) for one in found]
    say([notice for one in found for notice in one.study.warnings], notes)
    return found


def listing(folders: Sequence[Path], console: Console, notes: Console) -> dict[str, Any]:
    """Print the sweeps of stores, the newest first; the same as a document.

    Raises:
        InvalidValue: no store there, or a store given twice.
    """
    _require_apart(folders)
    several = len(folders) > 1
    document = []
    notices: list[str] = []
    for folder, label in zip(folders, folder_labels(folders), strict=True):
        if several:
            console.rule(escape(label), align="left")
        sweeps = read_all(folder, notices)
        at_work = max((one.id for one in sweeps), default="") if is_locked(folder) else None
        for sweep in sweeps:
            told = sweep.summary()
            if told["status"] == "running" and sweep.id != at_work:
                told["status"] = "killed"
            document.append(({"store": label} if several else {}) | told)
            started = told["started"][:16].replace("T", " ")
            line = f"{told['id']:24}  {told['status']:11}  {started}  {told['runs']:,} runs"
            command = " ".join(["    lil", *map(shlex.quote, told["arguments"])])
            for text in (line, command):
                console.print(text, markup=False, highlight=False, soft_wrap=True)
    say(notices, notes)
    return {"sweeps": document}


def _require_apart(folders: Sequence[Path]) -> None:
    seen: list[Path] = []
    for folder in folders:
        if folder.resolve() in seen:
            raise InvalidValue("store", str(folder), "each store once")
        seen.append(folder.resolve())
