"""Figures as PNG and SVG, drawn from a report: the Lil paper's three and two of ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

from experiments.report.charts import ChartSet
from experiments.report.figures.budgets import accuracy_length, compression, cost
from experiments.report.figures.curves import curves
from experiments.report.figures.detectors import detectors
from experiments.report.figures.style import STYLE, conditions, save
from experiments.report.names import short_names

if TYPE_CHECKING:
    from experiments.report.report import Report


def draw(report: Report, sets: Sequence[ChartSet], folder: Path) -> list[Path]:
    """Write the figures of every set of charts; their paths, PNG before SVG.

    Each file appears whole or not at all. Without a sparse configuration there is nothing to draw.
    Full attention is the one without penalty in all of them. Models and data sets have short names.

    - Figure 1: accuracy, output length and what was cut at the cap against budget.
    - Figure 2: compression ratio of whole outputs against budget.
    - Figure 3: compressed against original length, one line a sample.
    - Figure 4: keys read per solved problem against budget, over full attention's.
    - Figure 5, where there are detectors: tokens saved against change of accuracy.

    Args:
        report: what is drawn.
        sets: its charts.
        folder: where the files go; made if it is not there.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = short_names(row.model for row in report.rows)
    datasets = short_names(row.dataset for row in report.rows)
    plain = [
        replace(sample, model=models[sample.model], dataset=datasets[sample.dataset])
        for sample in report.samples
        if sample.detector == "none"
    ]
    plain.sort(key=lambda sample: sample.pair)
    notes = conditions(report.study.config)
    paths: list[Path] = []
    for charts in sets:
        suffix = f"-{_file_name(charts.model)}" if len({c.model for c in sets}) > 1 else ""
        suffix += "" if charts.penalty == "none" else f"-{_file_name(charts.penalty)}"
        under = "" if charts.penalty == "none" else f", penalty {charts.penalty}"
        samples = [s for s in plain if (s.model, s.penalty) == (charts.model, charts.penalty)]
        with matplotlib.rc_context(STYLE):
            figures = {
                "figure1-accuracy-length": accuracy_length(charts, under, notes),
                "figure2-compression": compression(charts, under, notes),
                "figure3-curves": curves(samples, charts, under, notes),
                "figure4-cost": cost(charts, under, notes),
                "figure5-detectors": detectors(charts, under, notes),
            }
            for name, figure in figures.items():
                if figure is not None:
                    paths += save(figure, folder / f"{name}{suffix}")
    return paths


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
