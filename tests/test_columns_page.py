"""The page of columns names every column of exports once, and none that does not exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from experiments.report.row import AtCap, Cheaper, ReportRow
from experiments.store.samples.sample import Sample
from experiments.store.store import Store

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "measures.md"


def named(title: str) -> list[str]:
    """Names in the first cells of a section's table."""
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]


def test_samples() -> None:
    assert sorted(named("Samples")) == sorted(one.name for one in fields(Sample))


def test_runs_of_a_frame() -> None:
    frame = Store(ROOT / "tests/experiments/data/small").frame()
    assert sorted(named("Runs of a frame")) == sorted(frame.columns)


def test_configurations() -> None:
    assert sorted(named("Configurations")) == sorted(one.name for one in fields(ReportRow))


def test_what_lies_within_a_row() -> None:
    text = PAGE.read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `cheaper`"))
    assert {one.name for one in fields(Cheaper)} <= set(re.findall(r"`(\w+)`", row))
    row = next(line for line in text.splitlines() if line.startswith("| `caps`"))
    assert "`factor`" in row
    assert {one.name for one in fields(AtCap)} - {"factor"} <= {f.name for f in fields(ReportRow)}
