"""What is shown of a study: tables, figures, a page and its claims in one line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.cli.console import Console, notify
from experiments.cli.parser import Parser
from experiments.cli.progress import bar
from experiments.report import figures, tables
from experiments.report.charts import chart_sets
from experiments.report.exports import check_file
from experiments.report.measures import against_random
from experiments.report.page.page import NAME, PageFile, write
from experiments.report.report import Report, make_report
from experiments.store import manifest
from experiments.store.files.filesystem import require_writable
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study
from lil import Detector


@dataclass(frozen=True)
class Outputs:
    """Where figures and page go; None for nowhere."""

    figures: Path | None
    page: Path | None

    @classmethod
    def of(cls, args: argparse.Namespace, store: Path) -> Outputs:
        """What the flags say of one store."""
        drawn = Path(args.figures or store / "figures")
        page = Path(args.page or store / NAME)
        no_page = args.no_page and args.page is None  # a comparison writes a page on request
        return cls(None if args.no_figures else drawn, None if no_page else page)


@dataclass(frozen=True)
class ShownReport:
    """A report that was shown, and the same as a document."""

    report: Report
    document: dict[str, Any]
    code: int = 0  # 2 where everything was shown but figures or page could not be written


def add_figure_flags(parser: Parser) -> None:
    """Add where figures and page go, or that there are none."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--figures", metavar="DIR", help="their folder (figures in the store)")
    where.add_argument("--no-figures", action="store_true", help="draw none")
    page = parser.add_mutually_exclusive_group()
    page.add_argument("--page", metavar="FILE", help=f"the HTML report ({NAME} in the store)")
    page.add_argument("--no-page", action="store_true", help="write none")


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse figures or a page that could not be written, before any work."""
    if args.page is not None:
        check_file("page", args.page)
    if args.figures == "":
        raise InvalidValue("figures", args.figures, "a folder")
    if args.figures is not None:
        require_writable(Path(args.figures), "figures")


def complete_samples(study: Study, detectors: Sequence[Detector]) -> list[Sample]:
    """The samples under no detector and each of these; refused where runs failed or are missing."""
    with bar("replaying", len(study.plan)) as advance:
        samples = study.samples(detectors, advance)
    plain = (s for s in samples if s.detector == "none" and s.role != "null")
    if missing := sum(not is_usable(sample) for sample in plain):
        allowed = f"one with all its runs: {missing}, the longest, failed or are not there; "
        allowed += "the sweep's own command decodes them"
        raise InvalidValue("store", str(study.folder), allowed)
    return samples


def report_of(study: Study, detectors: Sequence[Detector]) -> Report:
    """The report of a study under no detector and each of these; what is missing is printed."""
    with bar("replaying", len(study.plan)) as advance:
        samples = study.samples(detectors, advance)
    warned = [str(line) for sweep in study.sweeps for line in sweep.values.get("notices", ())]
    report = make_report(samples, study.config, [*warned, *study.warnings])
    if report.missing:
        missing = f"{report.missing} of {len(study.plan)} runs are not in the store"
        notify([f"{missing}; the sweep's own command decodes them"])
    return report


def show(study: Study, console: Console, outputs: Outputs, compare: bool = False) -> ShownReport:
    """Print tables, the figures' and the page's paths and the headline, and write those files."""
    report = report_of(study, study.detectors)
    if compare:
        rows = against_random(report.samples, report.rows, report.config)
        report = replace(report, against_random=rows)
    grids, sets = tables.every_grid(report), chart_sets(report)
    for grid in grids:
        console.print(tables.rich_table(grid, console.width))
    paths: list[Path] = []
    page: PageFile | None = None
    errors: list[InvalidValue] = []
    about = manifest.public(study.manifest)
    if outputs.figures is not None:
        try:
            paths = figures.draw(report, sets, outputs.figures)
        except OSError as error:
            allowed = f"a folder to write in ({error.strerror})"
            errors.append(InvalidValue("figures", str(outputs.figures), allowed))
    if outputs.page is not None:
        try:
            page = write(outputs.page, report, study.store, sets, grids, about)
        except InvalidValue as error:
            errors.append(error)
    for path in paths:
        console.plain(f"figure: {path}")
    if page is not None:
        some = f", {page.packed:,} of {page.of:,} traces in it" if page.packed < page.of else ""
        console.plain(f"page: {page.path}{some}")
    if errors:
        notify([f"error: {'; '.join(map(str, errors))}"])
    _print_counts(report, study.warnings, console)
    console.plain(f"\n{report.headline}", style="bold")
    about |= {
        "headline": report.headline,
        "figures": [str(path) for path in paths],
        "page": None if page is None else str(outputs.page),
        "runs_missing": report.missing,
        "notices": list(report.notices),
    }
    return ShownReport(report, document_of(report, about), 2 if errors else 0)


def document_of(report: Report, about: Mapping[str, Any]) -> dict[str, Any]:
    """A report as JSON takes it."""
    parts = {"rows": report.rows, "pooled": report.pooled}
    if report.against_random is not None:
        parts["against_random"] = report.against_random
    rows = {name: [row.to_dict() for row in part] for name, part in parts.items()}
    return {"manifest": dict(about), **rows, "stopping": [asdict(pool) for pool in report.pools]}


def _print_counts(report: Report, printed: Sequence[str], console: Console) -> None:
    """Print how many tokens were reused, how many runs failed, and what was not printed yet."""
    plain = [sample for sample in report.samples if sample.detector == "none"]
    reused = sum(sample.reused_tokens for sample in plain)
    console.plain(
        f"{reused:,} tokens were not decoded again but taken from full attention, where a sparse "
        "backend still equals it; their cost is charged"
    )
    if failed := sum(sample.status in ("error", "out_of_memory") for sample in plain):
        console.plain(f"{failed} runs failed; `status` and `message` of the store say why")
    for notice in report.notices:
        if notice not in printed:
            console.plain(notice)
