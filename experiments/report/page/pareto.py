"""What every detector and action saves against what it costs, as a chart of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.report.row import ReportRow, dataset_order, pairs


def pareto(rows: list[ReportRow]) -> list[dict[str, Any]]:
    """One chart, or none where no detector was replayed.

    Args:
        rows: of one model and penalty.
    """
    sparse = [row for row in rows if row.budget is not None]
    watched = pairs([row for row in sparse if row.detector_pairs])
    names = [name for name, _ in watched]
    panels = []
    for dataset in sorted({row.dataset for row in sparse}, key=dataset_order):
        lines, totals = [], []
        for style, ((name, action), of_detector) in enumerate(watched.items()):
            part = [row for row in of_detector.values() if row.dataset == dataset]
            if not part:
                continue
            told = name if names.count(name) == 1 else f"{name} ({action})"
            points = [
                {
                    "x": row.token_savings.estimate,
                    "y": row.detector_accuracy_change.estimate,
                    "low": row.detector_accuracy_change.low,
                    "high": row.detector_accuracy_change.high,
                    "more": f"{row.backend} {row.budget}",
                }
                for row in part
                if row.token_savings.estimate is not None
                and row.detector_accuracy_change.estimate is not None
            ]
            total = pooled(part)
            if total is not None:
                totals.append(total)
            of_all = [] if total is None else [_total(*total)]
            lines.append({"name": told, "style": style, "points": points, "total": of_all})
        if lines:
            edge = frontier([(0.0, 0.0), *totals])
            panels.append({"title": dataset, "lines": lines, "frontier": edge, "absent": []})
    if not panels:
        return []
    return [
        {
            "title": "Change of accuracy, points, against tokens saved",
            "note": "Every detector and action against the same traces left alone: small marks are "
            "configurations, large ones all sparse configurations of the data set together. The "
            "line joins what no other choice beats in both, stopping nothing among them.",
            "scatter": True,
            "x": {"unit": "percent", "label": "tokens saved"},
            "y": {"unit": "points"},
            "panels": panels,
        }
    ]


def _total(saved: float, change: float) -> dict[str, Any]:
    return {"x": saved, "y": change, "low": None, "high": None, "more": "all configurations"}


def pooled(rows: Sequence[ReportRow]) -> tuple[float, float] | None:
    """Tokens saved and accuracy changed over all pairs of these rows; None where none is known."""
    known = [row for row in rows if row.detector_accuracy_change.lost is not None]
    without = sum(row.detector_tokens_without or 0 for row in known)
    if not without:
        return None
    saved = 1 - sum(row.detector_tokens or 0 for row in known) / without
    moved = sum(
        (row.detector_accuracy_change.gained or 0) - (row.detector_accuracy_change.lost or 0)
        for row in known
    )
    return saved, moved / sum(row.detector_pairs or 0 for row in known)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both coordinates, by the first ascending."""

    def beaten(x: float, y: float) -> bool:
        return any(u >= x and v >= y and (u, v) != (x, y) for u, v in points)

    return sorted({point for point in points if not beaten(*point)})
