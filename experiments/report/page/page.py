"""The report as one HTML file: headline, conditions, figures, tables, and the texts themselves."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.report.charts import ChartSet
from experiments.report.page.traces import TraceBlocks, pack
from experiments.report.tables.grid import Grid, escape, html_table
from experiments.store.files.filesystem import require_file, write_atomically

if TYPE_CHECKING:
    from experiments.report.report import Report
    from experiments.store.store import Store

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
    store: Store,
    sets: Sequence[ChartSet],
    tables: Sequence[Grid],
    about: Mapping[str, Any],
    most: int = MOST,
) -> PageFile:
    """Write a report as one HTML page, atomically, with at most `most` bytes of traces."""
    require_file(path, "page")
    packed = pack(store, report.samples, report.rows, most)
    names = ["index", *(f"problem-{at}" for at in range(len(packed.blocks)))]
    blocks = "\n".join(
        f'<script type="application/x-lil-traces" id="{name}">{block}</script>'
        for name, block in zip(names, [packed.index, *packed.blocks], strict=True)
    )
    # A name may hold the same characters; the mark is the last of them.
    before, _, after = _page(report, sets, tables, about, packed).rpartition("{{traces}}")
    try:
        write_atomically(path, before + blocks + after)
    except InvalidValue as error:
        raise InvalidValue("page", str(path), f"a file to write ({error.__cause__})") from error
    return PageFile(path, len(blocks), packed.packed, packed.of)


def _page(
    report: Report,
    sets: Sequence[ChartSet],
    tables: Sequence[Grid],
    about: Mapping[str, Any],
    packed: TraceBlocks,
) -> str:
    """The page but for its blocks."""
    style, script = _asset("page.css"), _asset("page.js")
    models = ", ".join(str(model.get("name")) for model in about.get("models", ()))
    charts = [asdict(chart) | {"of": of.subject} for of in sets for chart in of.charts]
    # Tables of the same columns are side by side where there is room.
    groups = itertools.groupby(enumerate(tables), key=lambda numbered: numbered[1].columns)
    grids = ("".join(html_table(grid, at) for at, grid in group) for _, group in groups)
    shown = f"All {packed.of:,} runs that have a text."
    if packed.packed < packed.of:
        shown = f"{packed.packed:,} of {packed.of:,} runs: the first problems of every data set."
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(script)}",
        "title": escape(models or "report"),
        "style": style,
        "script": script,
        "headline": escape(report.headline),
        "notices": "".join(f'<p class="note">{escape(notice)}</p>' for notice in report.notices),
        "conditions": conditions(about),
        # No text in JSON can end the script: HTML looks for `<` alone.
        "charts": json.dumps(charts, allow_nan=False).replace("<", "\\u003c"),
        "tables": "\n".join(f'<div class="tables">{html}</div>' for html in grids),
        "shown": escape(shown),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda at: parts.get(at[1], at[0]), _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The digest by which a browser accepts the page's style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---------------------------------------------------------------- conditions

#: What of a manifest is elsewhere on the page.
_ELSEWHERE = ("headline", "notices", "figures", "page", "models", "config")


def conditions(about: Mapping[str, Any]) -> str:
    """What the numbers were made with: models, command and machine, then the configuration."""
    arguments = about.get("arguments")
    lines = {
        "model": [_model(model) for model in about.get("models", ())],
        "command": shlex.join(["lil", *map(str, arguments)]) if arguments else None,
        **{key: value for key, value in about.items() if key not in _ELSEWHERE},
        "arguments": None,
        "detectors": [_detector(entry) for entry in about.get("detectors", ())] or "none",
    }
    config = _list(about.get("config", {}))
    return f"{_list(lines)}<details><summary>The configuration</summary>{config}</details>"


def _list(lines: Mapping[str, object]) -> str:
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, value in lines.items()
        if value not in (None, "", [])
        for text in [", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value]
    )
    return f'<dl class="conditions">{shown}</dl>'


def _model(model: Mapping[str, Any]) -> str:
    text = f"{model.get('name')} {model.get('digest')}"
    if "key_layers" not in model:
        return text
    return (
        f"{text}, budgets, keys and bytes are of the {model['key_layers']} of its "
        f"{model['layers']} layers that hold keys"
    )


def _detector(entry: Mapping[str, Any]) -> str:
    """A detector with its parameters."""
    inside = ", ".join(f"{key} = {value}" for key, value in entry.items() if key != "name")
    return f"{entry.get('name')} ({inside})" if inside else str(entry.get("name"))
