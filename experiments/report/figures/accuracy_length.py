"""Figure 1: accuracy and output length against budget, and what was cut at the cap."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.report.figures.against_budget import Measure, Point, against_budget
from experiments.report.figures.footer import Conditions, cut, footer, other_detectors
from experiments.report.row import ReportRow


def accuracy_length(rows: list[ReportRow], under: str, conditions: Conditions) -> Figure:
    """Solid without, dotted and hollow with the detector; full attention dashed.

    Bars and band are 95% intervals. Below, the share of outputs that were cut at the cap.
    """
    measures = [
        Measure("accuracy", _accuracy, is_share=True),
        Measure("mean output length, tokens", _tokens),
    ]
    notes = [*footer(rows, conditions), *cut(rows), *other_detectors(rows)]
    if any(row.capped for row in rows):
        measures.append(Measure("cut at the cap", _cut, height=1.05, is_share=True))
    else:
        notes.append("no output was cut at the cap")
    title = f"Accuracy and output length against cache budget, with 95% intervals{under}"
    return against_budget(rows, measures, title, notes)


def _accuracy(row: ReportRow) -> Point:
    return row.accuracy.estimate, row.accuracy.low, row.accuracy.high


def _tokens(row: ReportRow) -> Point:
    return row.mean_tokens.estimate, row.mean_tokens.low, row.mean_tokens.high


def _cut(row: ReportRow) -> Point:
    return (row.capped / row.samples if row.is_complete else None), None, None
