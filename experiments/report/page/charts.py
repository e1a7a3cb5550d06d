"""What the page's charts show, from rows alone; the page's script only draws it.

A chart is a dictionary ready for JSON: `panels`, one a data set, each with `lines` of points in the
data's units. A point has `x`, `y` (None: not known, and `absent` says why), `low` and `high` (None:
unbounded, or no interval where both are) and `more`, words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from experiments.report.page.pareto import pareto
from experiments.report.row import (
    ReportRow,
    by_penalty,
    dataset_order,
    series,
    shown_detector,
)

Point = tuple[float | None, float | None, float | None]  # value, low, high
Measure = Callable[[ReportRow], Point]


def charts(rows: Sequence[ReportRow]) -> list[dict[str, Any]]:
    """The charts of every model and penalty, in reading order; none without a sparse row."""
    found = []
    models = sorted({row.model for row in rows if row.budget is not None})
    for model in models:
        of_model = [row for row in rows if row.model == model]
        for penalty in by_penalty([row for row in of_model if row.budget is not None]):
            told = [model] if len(models) > 1 else []
            told += [] if penalty == "none" else [f"penalty {penalty}"]
            shown = [
                row
                for row in of_model
                if row.penalty == penalty or row.is_baseline or row.role == "null"
            ]
            found += [one | {"of": ", ".join(told)} for one in _charts(shown)]
    return found


def _charts(rows: list[ReportRow]) -> list[dict[str, Any]]:
    watched = shown_detector(rows)
    dotted = f" Dotted: with {watched[0]}, where it moves the point." if watched else ""
    made = [
        _against_budget(
            rows,
            "Accuracy",
            "Share of problems solved, with 95% intervals; the band is full attention." + dotted,
            {"unit": "percent", "from": 0, "to": 1},
            lambda row: (row.accuracy.estimate, row.accuracy.low, row.accuracy.high),
        ),
        _against_budget(
            rows,
            "Output length, tokens",
            "Mean tokens of an output, with 95% intervals; what was cut counts as long as it was "
            "let." + dotted,
            {"unit": "tokens", "from": 0},
            lambda row: (row.mean_tokens.estimate, row.mean_tokens.low, row.mean_tokens.high),
        ),
        _against_budget(
            rows,
            "Cut at the cap",
            "Share of outputs cut at the cap: where it is high, lengths and ratios are lower "
            "bounds.",
            {"unit": "percent", "from": 0, "to": 1},
            _cut,
            detector=False,
        ),
        _against_budget(
            rows,
            "Cost of a solved problem, times full attention's",
            "Keys read per solved problem over full attention's, on a logarithmic scale, with 95% "
            "intervals. Below the line a method is cheaper than full attention.",
            {"unit": "times", "log": True},
            lambda row: (
                row.keys_read_per_solved_ratio.estimate,
                row.keys_read_per_solved_ratio.low,
                row.keys_read_per_solved_ratio.high,
            ),
            level=1.0,
            detector=False,
        ),
        _against_budget(
            rows,
            "Compression ratio",
            "Compressed over original bytes of whole outputs: low where a text repeats itself.",
            {"unit": "ratio", "from": 0},
            lambda row: (
                row.compression_ratio.estimate,
                row.compression_ratio.low,
                row.compression_ratio.high,
            ),
            detector=False,
        ),
    ]
    return [*made, *pareto(rows)]


def _cut(row: ReportRow) -> Point:
    known = row.is_complete and row.samples
    return (row.capped / row.samples if known else None), None, None


def _against_budget(
    rows: list[ReportRow],
    title: str,
    note: str,
    scale: dict[str, Any],
    measure: Measure,
    level: float | None = None,
    detector: bool = True,
) -> dict[str, Any]:
    budgets = sorted({row.budget for row in rows if row.budget is not None})
    datasets = sorted({row.dataset for row in rows if row.budget is not None}, key=dataset_order)
    styles = _styles(rows, datasets)
    panels = []
    for dataset in datasets:
        part = [row for row in rows if row.dataset == dataset]
        plain = [row for row in part if row.detector == "none"]
        lines, absent = [], []
        of_label = series([row for row in plain if row.budget is not None])
        for label, line in of_label.items():
            lines.append({"name": label, "style": styles[label], **_points(line, measure)})
            absent += [(_why(r), label, str(r.budget)) for r in line if measure(r)[0] is None]
        if detector:
            lines += _watched(part, of_label, styles, measure)
        panels.append(
            {
                "title": f"{dataset} ({max(row.problems for row in part)} problems)",
                "lines": lines,
                "level": _level(plain, measure, level),
                "null": _null(plain, measure),
                "absent": _told(absent),
            }
        )
    return {
        "title": title,
        "note": note,
        "x": {"unit": "tokens", "log": True, "ticks": budgets, "label": "cache budget, tokens"},
        "y": scale,
        "panels": panels,
    }


def _points(line: list[ReportRow], measure: Measure) -> dict[str, Any]:
    known = [(row, *measure(row)) for row in line]
    return {
        "points": [
            {"x": row.budget, "y": value, "low": low, "high": high, "more": _more(row)}
            for row, value, low, high in known
        ]
    }


def _more(row: ReportRow) -> str:
    return f"{row.capped} of {row.samples} cut at the cap" if row.capped else ""


def _why(row: ReportRow) -> str:
    """Why a configuration has no such number."""
    if not row.is_complete:
        there = row.samples - row.missing - row.errors
        return f"{there} of {row.samples} samples, not comparable"
    return "none solved" if row.accuracy.estimate == 0 else "not known"


def _told(absent: list[tuple[str, str, str]]) -> list[str]:
    """A sentence for each reason: which backends have no number at which budgets."""
    told: dict[str, dict[str, list[str]]] = {}
    for why, label, budget in absent:
        told.setdefault(why, {}).setdefault(label, []).append(budget)
    where = {
        why: "; ".join(f"{label} {', '.join(at)}" for label, at in of.items())
        for why, of in told.items()
    }
    return [f"{why}: {at}" for why, at in where.items()]


def _level(plain: list[ReportRow], measure: Measure, level: float | None) -> dict[str, Any] | None:
    """Full attention's line, and its interval where that is not what all are divided by."""
    if level is not None:
        return {"y": level, "low": None, "high": None}
    for row in plain:
        if row.is_baseline:
            value, low, high = measure(row)
            return None if value is None else {"y": value, "low": low, "high": high}
    return None


def _null(plain: list[ReportRow], measure: Measure) -> dict[str, Any] | None:
    """The null's line: what chance alone does to full attention."""
    for row in plain:
        if row.role == "null":
            value, low, high = measure(row)
            return None if value is None else {"y": value, "low": low, "high": high}
    return None


def _watched(
    part: list[ReportRow],
    of_label: dict[str, list[ReportRow]],
    styles: dict[str, int],
    measure: Measure,
) -> list[dict[str, Any]]:
    """The lines of the shown detector where it moves anything: elsewhere one would hide another."""
    watched = shown_detector(part)
    under = series([r for r in part if r.watched == watched and r.budget is not None])
    lines = []
    for label, line in under.items():
        alone = {row.budget: measure(row)[0] for row in of_label.get(label, [])}
        if watched and any(measure(row)[0] != alone.get(row.budget) for row in line):
            told = f"{label} with {watched[0]}"
            points = _points(line, lambda row: (measure(row)[0], None, None))
            lines.append({"name": told, "style": styles.get(label, 0), "dotted": True, **points})
    return lines


def _styles(rows: list[ReportRow], datasets: list[str]) -> dict[str, int]:
    """A style's number by label, the same in every panel."""
    plain = [row for row in rows if row.budget is not None and row.detector == "none"]
    labels = [x for d in datasets for x in series([row for row in plain if row.dataset == d])]
    return {label: at for at, label in enumerate(dict.fromkeys(labels))}
