"""Figures as PNG and SVG, drawn from rows and samples alone: the paper's three and two of ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import matplotlib

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
from experiments.store.workers import processes

__all__ = ["Conditions", "drawing", "figures"]

#: Samples below which another process is not worth its start.
FEW = 10_000

_NOTHING = Conditions()


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
    with drawing(samples, rows, out_dir, conditions) as drawn:
        return drawn()


@contextlib.contextmanager
def drawing(
    samples: Sequence[Sample],
    rows: Sequence[ReportRow],
    out_dir: Path,
    conditions: Conditions = _NOTHING,
    workers: int = 1,
) -> Iterator[Callable[[], list[Path]]]:
    """`figures` while something else is done: call what is given to wait for their paths.

    Args:
        samples, rows, out_dir, conditions: as there.
        workers: processes that draw, where samples are many.

    Raises:
        OSError: a file cannot be written; of its folder at once, else by what is given.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    named = naming(rows)
    samples, rows = [named(one) for one in samples], shortly_named(rows)
    models = sorted({row.model for row in rows if row.budget is not None})
    parts = []
    for model in models:
        of_model = [row for row in rows if row.model == model]
        for penalty in by_penalty([row for row in of_model if row.budget is not None]):
            suffix = f"-{_file_name(model)}" if len(models) > 1 else ""
            suffix += "" if penalty == "none" else f"-{_file_name(penalty)}"
            shown = [row for row in of_model if row.penalty == penalty or row.is_baseline]
            mine = [one for one in samples if (one.model, one.penalty) == (model, penalty)]
            parts.append((mine, shown, penalty, suffix, out_dir, conditions))
    if workers < 2 or len(samples) < FEW or not parts:
        yield lambda: [path for part in parts for path in _drawn(*part)]
        return
    with processes(min(workers, len(parts))) as pool:
        waiting = [pool.submit(_drawn, *part) for part in parts]
        yield lambda: [path for drawn in waiting for path in drawn.result()]


def _drawn(
    samples: list[Sample],
    rows: list[ReportRow],
    penalty: str,
    suffix: str,
    out_dir: Path,
    conditions: Conditions,
) -> list[Path]:
    """The figures of one model under one penalty."""
    under = "" if penalty == "none" else f", penalty {penalty}"
    samples.sort(key=lambda one: one.pair)
    plain = [one for one in samples if one.detector == "none"]
    paths = []
    with matplotlib.rc_context(STYLE):
        for name, figure in (
            ("figure1-accuracy-length", accuracy_length(rows, under, conditions)),
            ("figure2-compression", compression(rows, under, conditions)),
            ("figure3-curves", curves(plain, rows, penalty, under, conditions)),
            ("figure4-cost", cost(rows, under, conditions)),
            ("figure5-detectors", pareto(samples, rows, under, conditions)),
        ):
            if figure is not None:
                paths += save(figure, out_dir / f"{name}{suffix}")
    return paths


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
