"""What a sweep ends with and a report repeats: tables, drawing, figures, one sentence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.cli.progress import bar
from experiments.grid.config import Config, check
from experiments.grid.plan import Plan, build_detectors
from experiments.report import figures, measures, tables, terminal
from experiments.store import manifest
from experiments.store.replay import Results, samples
from experiments.store.sample import Sample
from experiments.store.store import Store
from lil import Detector


@dataclass(frozen=True)
class Opened:
    """A store with the manifest of its last sweep."""

    folder: Path
    store: Store
    manifest: dict[str, Any]
    plan: Plan
    config: Config

    def replay(self, detectors: Sequence[Detector], console: Console) -> Results:
        """Samples of the plan under no detector and each of these; what is missing is said."""
        with bar("replaying", len(self.plan)) as advance:
            results = samples(self.store, self.plan, self.config, detectors, advance)
        if results.missing:
            console.print(
                f"{results.missing} of {len(self.plan)} runs are not in the store; "
                "the sweep's own command decodes them"
            )
        return results


def open_store(folder: Path, console: Console | None) -> Opened:
    """A store as its last sweep left it.

    Args:
        folder: of the store.
        console: where damage is reported; None where that has been done.

    Raises:
        InvalidValue: no store there.
    """
    values = manifest.read(folder)
    store = Store(folder)
    if console is not None:
        for notice in store.notices:
            console.print(f"lil: {notice}", markup=False, highlight=False, soft_wrap=True)
    config = Config(**check(values["config"], f"{folder / manifest.NAME}"))
    return Opened(folder, store, values, Plan.from_dict(values["plan"]), config)


@dataclass(frozen=True)
class Shown:
    """Everything a report is made of."""

    samples: Sequence[Sample]
    rows: Sequence[measures.Row]
    document: dict[str, Any]


def show(opened: Opened, console: Console, notes: Console, draw: bool = True) -> Shown:
    """Tables, accuracy and length drawn, figures' paths and the finding, on `console`."""
    results = opened.replay(build_detectors(opened.config), notes)
    rows = measures.rows(results.samples, opened.config.seed)
    shown = (tables.main_tables, tables.table1, tables.penalty_tables)
    for table in itertools.chain.from_iterable(make(rows) for make in shown):
        console.print(table)
    if any(row.backend != "full" for row in rows):
        console.print(terminal.draw(rows, width=console.width))
    paths = figures.figures(results.samples, rows, opened.folder / "figures") if draw else []
    for path in paths:
        console.print(f"figure: {path}", highlight=False, markup=False, soft_wrap=True)
    _say_spared(rows, console)
    finding = measures.finding(rows)
    console.print()
    console.print(finding, style="bold", highlight=False, markup=False)
    about = manifest.public(opened.manifest) | {
        "finding": finding,
        "figures": [str(path) for path in paths],
        "runs_missing": results.missing,
        "notices": opened.store.notices,
    }
    document = {"manifest": about, "rows": [row.to_dict() for row in rows]}
    return Shown(results.samples, rows, document)


def _say_spared(rows: Sequence[measures.Row], console: Console) -> None:
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
