"""Figure 2: compression ratio of whole outputs against budget."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.report.figures.against_budget import Measure, Point, against_budget
from experiments.report.figures.footer import Conditions, cut, footer, other_detectors
from experiments.report.row import ReportRow

_LENGTH = (
    "a longer text of the same kind compresses better, so a lower ratio of longer outputs alone is "
    "no sign of repetition"
)
_CUT = "their ratios are those of what there is"


def compression(rows: list[ReportRow], under: str, conditions: Conditions) -> Figure:
    """Solid without, dotted and hollow with the detector; full attention dashed; 95% intervals."""
    title = f"Compression ratio of the output against cache budget, with 95% intervals{under}"
    notes = [*footer(rows, conditions), _LENGTH, *cut(rows, _CUT), *other_detectors(rows)]
    measure = Measure("compressed / original bytes", _ratio, height=2.6)
    return against_budget(rows, [measure], title, notes)


def _ratio(row: ReportRow) -> Point:
    return row.compression_ratio.estimate, row.compression_ratio.low, row.compression_ratio.high
