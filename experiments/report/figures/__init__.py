"""Figures as PNG and SVG, drawn from rows and samples alone: the paper's three and two of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments.report.figures.accuracy_length import accuracy_length
from experiments.report.figures.compression import compression
from experiments.report.figures.cost import cost
from experiments.report.figures.curves import curves
from experiments.report.figures.footer import Conditions
from experiments.report.figures.pareto import pareto
from experiments.report.figures.style import STYLE, save
from experiments.report.names import naming, shortly_named
from experiments.report.row import ReportRow, by_penalty
from experiments.store.samples.sample import Sample

__all__ = ["Conditions", "drawing", "figures"]

_NOTHING = Conditions()

_Part = tuple[Path, Callable[..., Figure | None], tuple[Any, ...]]


def figures(
    samples: Sequence[Sample],
    rows: Sequence[ReportRow],
    out_dir: Path,
    conditions: Conditions = _NOTHING,
) -> list[Path]:
    """Write the figures of every model and penalty; their paths, PNG before SVG.

    Each file appears whole or not at all. Without a sparse configuration there is nothing to draw.
    Full attention is the one without penalty in all of them. Models and data sets have short names.

    - Figure 1: accuracy, output length and what was cut at the cap against budget.
    - Figure 2: compression ratio of whole outputs against budget.
    - Figure 3: compressed against original length, one line a sample.
    - Figure 4: keys read per solved problem against budget, over full attention's.
    - Figure 5, where there are detectors: tokens saved against change of accuracy.

    Args:
        samples, rows: what was found.
        out_dir: where the files go; made if it is not there.
        conditions: what stands in the footer beside what the rows say.

    Raises:
        OSError: a file cannot be written.
    """
    return drawing(samples, rows, out_dir, conditions)()


def drawing(
    samples: Sequence[Sample],
    rows: Sequence[ReportRow],
    out_dir: Path,
    conditions: Conditions = _NOTHING,
    pool: Executor | None = None,
) -> Callable[[], list[Path]]:
    """`figures` while something else is done: call what is given to wait for their paths.

    Args:
        samples, rows, out_dir, conditions: as there.
        pool: processes that draw meanwhile; without them all is drawn by the call.

    Raises:
        OSError: a file cannot be written; of its folder at once, else by what is given.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    named = naming(rows)
    samples, rows = [named(one) for one in samples], shortly_named(rows)
    models = sorted({row.model for row in rows if row.budget is not None})
    parts: list[_Part] = []
    for model in models:
        of_model = [row for row in rows if row.model == model]
        for penalty in by_penalty([row for row in of_model if row.budget is not None]):
            suffix = f"-{_file_name(model)}" if len(models) > 1 else ""
            suffix += "" if penalty == "none" else f"-{_file_name(penalty)}"
            shown = [
                row
                for row in of_model
                if row.penalty == penalty or row.is_baseline or row.role == "null"
            ]
            mine = [one for one in samples if (one.model, one.penalty) == (model, penalty)]
            mine.sort(key=lambda one: one.pair)
            parts += _parts(mine, shown, penalty, out_dir, suffix, conditions)
    if pool is None:
        return lambda: [path for part in parts for path in _saved(*part)]
    waiting = [pool.submit(_saved, *part) for part in parts]
    return lambda: [path for saved in waiting for path in saved.result()]


def _parts(
    samples: list[Sample],
    rows: list[ReportRow],
    penalty: str,
    out_dir: Path,
    suffix: str,
    conditions: Conditions,
) -> list[_Part]:
    """The figures of one model under one penalty: where each goes, what draws it and from what."""
    under = "" if penalty == "none" else f", penalty {penalty}"
    plain = [one for one in samples if one.detector == "none"]
    made: tuple[tuple[str, Callable[..., Figure | None], tuple[Any, ...]], ...] = (
        ("figure1-accuracy-length", accuracy_length, (rows,)),
        ("figure2-compression", compression, (rows,)),
        ("figure3-curves", curves, (plain, rows, penalty)),
        ("figure4-cost", cost, (rows,)),
        ("figure5-detectors", pareto, (samples, rows)),
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
