"""Write the page: one file, no network, its traces compressed inside it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.report.charts import Axis, ChartSet, Panel, Point, Series
from experiments.report.page import markup
from experiments.report.page.runs import RULE, page_runs
from experiments.report.page.traces import TraceBlocks, pack
from experiments.report.tables.grid import Grid, escape, html_table
from experiments.store.files.filesystem import require_file, write_atomically

if TYPE_CHECKING:
    from experiments.report.report import Report

NAME = "report.html"

#: Most bytes of the page's traces.
MOST = 20_000_000


@dataclass(frozen=True)
class PageFile:
    """A page that was written.

    Attributes:
        path: where.
        size: bytes of its traces.
        packed, of: runs whose text is in it, and runs that have one.
    """

    path: Path
    size: int
    packed: int
    of: int


def write(
    path: Path,
    report: Report,
    sets: Sequence[ChartSet],
    tables: Sequence[Grid],
    about: Mapping[str, Any],
    most: int = MOST,
) -> PageFile:
    """Write a report as one HTML page; it appears whole or not at all.

    Args:
        path: the file.
        report: whose study has the samples' traces.
        sets: its charts.
        tables: as the terminal shows them.
        about: the manifest.
        most: bytes of its traces; what does not fit is left out, and the page says so.

    Raises:
        InvalidValue: the file cannot be written.
    """
    require_file(path, "page")
    packed = pack(report.study, page_runs(report.study, report.samples), report.rows, most)
    problems = enumerate(packed.blocks)
    blocks = "\n".join(
        f'<script type="application/x-lil-traces" id="{name}">{block}</script>'
        for name, block in [("index", packed.index), *((f"problem-{at}", b) for at, b in problems)]
    )
    page = _fill(report, sets, tables, about, packed)
    # A name may hold the same characters; the mark is the last of them.
    before, _, after = page.rpartition("{{traces}}")
    text = before + blocks + after
    try:
        write_atomically(path, text)
    except InvalidValue as error:
        raise InvalidValue("page", str(path), f"a file to write ({error.__cause__})") from error
    return PageFile(path, len(blocks), packed.packed, packed.of)


def chart_values(of: ChartSet) -> list[dict[str, Any]]:
    """The charts of a set, ready for JSON; the page's script only draws them.

    A chart has `panels`, each with `levels` and `lines` of points in the data's units. A point has
    `x`, `y` (None: not known, and `absent` says why), `low` and `high` (None: no interval) and
    `more`, words.
    """
    return [
        {
            "title": chart.title,
            "of": of.subject,
            "note": chart.note,
            "scatter": chart.key in ("detectors", "waste"),
            "x": _axis(chart.x),
            "y": _axis(chart.y),
            "panels": [_panel(panel) for panel in chart.panels],
        }
        for chart in of.charts
    ]


def _axis(axis: Axis) -> dict[str, Any]:
    ends = {"from": axis.low, "to": axis.high, "ticks": list(axis.ticks) or None}
    known = {key: value for key, value in ends.items() if value is not None}
    return {"unit": axis.unit, "label": axis.label, "log": axis.is_log, **known}


def _panel(panel: Panel) -> dict[str, Any]:
    lines = [(line, panel.place(line)) for line in [*panel.lines, *panel.under_detector]]
    return {
        "title": f"{panel.dataset} ({panel.words})",
        "levels": [_series(level) for level in panel.levels],
        "lines": [_series(line) | {"place": place} for line, place in lines],
        "frontier": panel.front,
        "absent": _absent(panel),
    }


def _series(line: Series) -> dict[str, Any]:
    under = {} if line.detector is None else {"dotted": True}
    name = line.name + ("" if line.detector is None else f" with {line.detector[0]}")
    total = [] if line.total is None else [_point(line.total)]
    points = [_point(point) for point in line.points]
    return {"name": name, "style": asdict(line.style), "points": points, "total": total, **under}


def _point(at: Point) -> dict[str, Any]:
    values = {"x": at.x, "y": at.y, "low": at.low, "high": at.high}
    across = {} if at.left is None else {"left": at.left, "right": at.right}
    return values | across | ({"more": at.words} if at.words else {})


def _absent(panel: Panel) -> list[str]:
    """A sentence for each reason: which backends have no number at which budgets."""
    where: dict[str, dict[str, list[str]]] = {}
    for line in panel.lines:
        for point in line.points:
            if point.missing:
                where.setdefault(point.missing, {}).setdefault(line.name, []).append(f"{point.x}")
    return [
        f"{why}: " + "; ".join(f"{name} {', '.join(at)}" for name, at in of.items())
        for why, of in where.items()
    ]


def _embedded(values: object) -> str:
    """JSON that no text in it can end: HTML looks for `<` alone."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _fill(
    report: Report,
    sets: Sequence[ChartSet],
    tables: Sequence[Grid],
    about: Mapping[str, Any],
    packed: TraceBlocks,
) -> str:
    """The page but for its blocks."""
    style, script = _asset("page.css"), _asset("page.js")
    models = ", ".join(str(model.get("name")) for model in about.get("models", ()))
    charts = [_embedded(values) for charts in sets for values in chart_values(charts)]
    # Tables of the same columns stand side by side where there is room.
    groups = itertools.groupby(enumerate(tables), key=lambda numbered: numbered[1].columns)
    grids = ("".join(html_table(grid, at) for at, grid in group) for _, group in groups)
    shown = f"All {packed.of:,} runs that have a text."
    if packed.packed < packed.of:
        shown = f"{packed.packed:,} of {packed.of:,} runs: {RULE}."
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(script)}",
        "title": escape(models or "report"),
        "style": style,
        "script": script,
        "headline": escape(report.headline),
        "notices": "".join(f'<p class="note">{escape(notice)}</p>' for notice in report.notices),
        "conditions": markup.conditions(about),
        "charts": f"[{','.join(charts)}]",
        "tables": "\n".join(f'<div class="tables">{html}</div>' for html in grids),
        "shown": escape(shown),
    }
    template = _asset("page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda at: parts.get(at[1], at[0]), template)


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a browser is told to expect of the one style and the one script it may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
