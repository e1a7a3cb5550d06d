"""Write the page: one file, no network, its traces compressed inside it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.report.charts import Axis, ChartSet, Panel, Point, Series
from experiments.report.page import markup
from experiments.report.page.chosen import RULE, page_runs
from experiments.report.page.traces import TraceBlocks, pack
from experiments.report.row import ReportRow
from experiments.report.tables.grid import Grid, escape, html_table
from experiments.store.files.filesystem import require_file, write_atomically
from experiments.store.samples.sample import Sample
from experiments.store.study import Study

NAME = "report.html"

#: Most bytes of the page without its traces, and of its traces.
LIGHT = 300_000
HEAVY = 20_000_000


# Bytes at most around a chart or a table.
_JOINT = 30


@dataclass(frozen=True)
class PageFile:
    """A page that was written.

    Attributes:
        path: where.
        light, heavy: bytes without the traces, and of the traces.
        kept, of: runs whose text is in it, and runs that have one.
        left_out: charts and tables for which there was no room.
    """

    path: Path
    light: int
    heavy: int
    kept: int
    of: int
    left_out: int


def write(
    path: Path,
    study: Study,
    samples: Sequence[Sample],
    rows: Sequence[ReportRow],
    sets: Sequence[ChartSet],
    tables: Iterable[Grid],
    about: Mapping[str, Any],
    *,
    light: int = LIGHT,
    heavy: int = HEAVY,
) -> PageFile:
    """Write a report as one HTML page; it appears whole or not at all.

    Args:
        path: the file.
        study: where the samples' traces are.
        samples, rows, sets: what is reported, and its charts.
        tables: as the terminal shows them.
        about: the manifest and the finding.
        light, heavy: most bytes without traces, and of traces; what does not fit is left out, and
            the page says so.

    Raises:
        InvalidValue: the file cannot be written.
    """
    require_file(path, "page")
    packed = pack(study, page_runs(study, samples), rows, heavy)
    blocks = "\n".join(
        f'<script type="application/x-lil-traces" id="{name}">{block}</script>'
        for name, block in [("index", packed.index), *_numbered(packed.blocks)]
    )
    page, left_out = _light(sets, list(tables), about, packed, light)
    # A name may hold the same characters; the mark is the last of them.
    before, _, after = page.rpartition("{{traces}}")
    text = before + blocks + after
    try:
        write_atomically(path, text)
    except InvalidValue as error:
        raise InvalidValue("page", str(path), f"a file to write ({error.__cause__})") from error
    size = len(text.encode())
    return PageFile(path, size - len(blocks), len(blocks), packed.kept, packed.of, left_out)


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
    lines = [(one, panel.place(one)) for one in [*panel.lines, *panel.under_detector]]
    return {
        "title": f"{panel.dataset} ({panel.words})",
        "levels": [_series(one) for one in panel.levels],
        "lines": [_series(one) | {"place": place} for one, place in lines],
        "frontier": panel.front,
        "absent": _absent(panel),
    }


def _series(one: Series) -> dict[str, Any]:
    under = {} if one.detector is None else {"dotted": True}
    name = one.name + ("" if one.detector is None else f" with {one.detector[0]}")
    total = [] if one.total is None else [_point(one.total)]
    points = [_point(point) for point in one.points]
    return {"name": name, "style": asdict(one.style), "points": points, "total": total, **under}


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


def _numbered(blocks: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"problem-{at}", block) for at, block in enumerate(blocks)]


def _light(
    sets: Sequence[ChartSet],
    tables: Sequence[Grid],
    about: Mapping[str, Any],
    packed: TraceBlocks,
    limit: int,
) -> tuple[str, int]:
    """The page but for its blocks, and how many charts and tables had no room."""
    drawn = [_embedded(one) for of in sets for one in chart_values(of)]
    made = [html_table(one, number) for number, one in enumerate(tables)]
    empty = _fill(about, packed, [], [], len(drawn) + len(made))
    room = limit - len(empty.encode())
    shown_charts, room = _fitting(drawn, room)
    shown_tables, room = _fitting(made, room)
    left_out = len(drawn) + len(made) - len(shown_charts) - len(shown_tables)
    return _fill(about, packed, shown_charts, _beside(tables, shown_tables), left_out), left_out


def _beside(tables: Sequence[Grid], made: Sequence[str]) -> list[str]:
    """Tables of the same columns together, so that they stand beside each other where they can."""
    heads = [table.columns for table in tables]
    groups = itertools.groupby(zip(heads, made, strict=False), key=lambda both: both[0])
    return [f'<div class="tables">{"".join(one for _, one in group)}</div>' for _, group in groups]


def _fitting(parts: Sequence[str], room: int) -> tuple[list[str], int]:
    """The first of them that have room together, and what room is left."""
    kept = []
    for part in parts:
        need = len(part.encode()) + _JOINT
        if need > room:
            break
        room -= need
        kept.append(part)
    return kept, room


def _embedded(values: object) -> str:
    """JSON that no text in it can end: HTML looks for `<` alone."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _fill(
    about: Mapping[str, Any],
    packed: TraceBlocks,
    drawn: Sequence[str],
    made: Sequence[str],
    left_out: int,
) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    models = ", ".join(str(one.get("name")) for one in about.get("models", ()))
    missing = (
        f'<p class="note" id="left-out">{left_out} charts or tables are not on this page, for '
        "which there was no room; <code>lil report</code> prints every table.</p>"
        if left_out
        else ""
    )
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(script)}",
        "title": escape(models or "report"),
        "style": style,
        "script": script,
        "finding": escape(about.get("finding", "")),
        "conditions": markup.conditions(about),
        "charts": f"[{','.join(drawn)}]",
        "tables": "\n".join(made),
        "missing": missing,
        "kept": escape(_kept(packed)),
    }
    template = _asset("page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda at: parts.get(at[1], at[0]), template)


def _kept(packed: TraceBlocks) -> str:
    if packed.kept == packed.of:
        return f"All {packed.of:,} runs that have a text."
    return f"{packed.kept:,} of {packed.of:,} runs: {RULE}."


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a browser is told to expect of the one style and the one script it may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
