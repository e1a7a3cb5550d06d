"""Figures as PNG and SVG, drawn from rows and samples alone: the paper's three and two of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments.report.charts import ChartSet
from experiments.report.figures.budgets import accuracy_length, compression, cost
from experiments.report.figures.curves import curves
from experiments.report.figures.detectors import detectors
from experiments.report.figures.style import STYLE, Conditions, save
from experiments.report.names import naming
from experiments.report.row import ReportRow
from experiments.store.samples.sample import Sample

__all__ = ["Conditions", "drawing"]

_NOTHING = Conditions()

_Part = tuple[Path, Callable[..., Figure | None], tuple[Any, ...]]


def drawing(
    samples: Sequence[Sample],
    rows: Sequence[ReportRow],
    sets: Sequence[ChartSet],
    out_dir: Path,
    conditions: Conditions = _NOTHING,
    pool: Executor | None = None,
) -> Callable[[], list[Path]]:
    """Write the figures of every set of charts: call what is given for their paths, PNG before SVG.

    Each file appears whole or not at all. Without a sparse configuration there is nothing to draw.
    Full attention is the one without penalty in all of them. Models and data sets have short names.

    - Figure 1: accuracy, output length and what was cut at the cap against budget.
    - Figure 2: compression ratio of whole outputs against budget.
    - Figure 3: compressed against original length, one line a sample.
    - Figure 4: keys read per solved problem against budget, over full attention's.
    - Figure 5, where there are detectors: tokens saved against change of accuracy.

    Args:
        samples, rows: what was found.
        sets: its charts.
        out_dir: where the files go; made if it is not there.
        conditions: what stands in the footer beside what the rows say.
        pool: processes that draw meanwhile; without them all is drawn by the call.

    Raises:
        OSError: a file cannot be written; of its folder at once, else by what is given.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    named = naming(rows)
    plain = [named(one) for one in samples if one.detector == "none"]
    several = len({of.model for of in sets}) > 1
    parts: list[_Part] = []
    for of in sets:
        suffix = f"-{_file_name(of.model)}" if several else ""
        suffix += "" if of.penalty == "none" else f"-{_file_name(of.penalty)}"
        mine = [one for one in plain if (one.model, one.penalty) == (of.model, of.penalty)]
        mine.sort(key=lambda one: one.pair)
        parts += _parts(mine, of, out_dir, suffix, conditions)
    if pool is None:
        return lambda: [path for part in parts for path in _saved(*part)]
    waiting = [pool.submit(_saved, *part) for part in parts]
    return lambda: [path for saved in waiting for path in saved.result()]


def _parts(
    samples: list[Sample], of: ChartSet, out_dir: Path, suffix: str, conditions: Conditions
) -> list[_Part]:
    """The figures of one set: where each goes, what draws it and from what."""
    under = "" if of.penalty == "none" else f", penalty {of.penalty}"
    made: tuple[tuple[str, Callable[..., Figure | None], tuple[Any, ...]], ...] = (
        ("figure1-accuracy-length", accuracy_length, (of,)),
        ("figure2-compression", compression, (of,)),
        ("figure3-curves", curves, (samples, of)),
        ("figure4-cost", cost, (of,)),
        ("figure5-detectors", detectors, (of,)),
    )
    return [
        (out_dir / f"{name}{suffix}", draw, (*what, under, conditions)) for name, draw, what in made
    ]


def _saved(path: Path, draw: Callable[..., Figure | None], what: tuple[Any, ...]) -> list[Path]:
    with matplotlib.rc_context(STYLE):
        figure = draw(*what)
        return [] if figure is None else save(figure, path)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
