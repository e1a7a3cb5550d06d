"""Charts made of a report, drawn alike by figures and the page, which choose no rows themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from experiments.grid.needles import PART
from experiments.report.names import counted, series, short_named, short_names
from experiments.report.report import DetectorPool
from experiments.report.row import ReportRow, by_penalty, dataset_order
from experiments.report.statistics import Interval
from experiments.store.samples.sample import Role

if TYPE_CHECKING:
    from experiments.report.report import Report

#: Why a configuration has no cost.
NONE_SOLVED = "none solved"


@dataclass(frozen=True)
class Axis:
    """An axis in the data's units; without ends or ticks they follow the data."""

    label: str
    unit: Literal["percent", "points", "tokens", "times", "ratio"]
    is_log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Style:
    """Colour and mark of a series in every panel: each role has its own, by number."""

    role: Role | Literal["full"]
    number: int = 0


@dataclass(frozen=True)
class Point:
    """A mark with the intervals of y and x: without x a level; without y, `missing` says why."""

    x: float | None
    y: float | None
    low: float | None = None
    high: float | None = None
    left: float | None = None
    right: float | None = None
    words: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Series:
    """Points that belong together, by x, and all of them together as `total`."""

    name: str
    style: Style
    points: tuple[Point, ...]
    total: Point | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    `levels` hold at every x: full attention and nulls. `absent` says which numbers are missing.
    """

    title: str
    lines: tuple[Series, ...]
    levels: tuple[Series, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """Panels with the same axes; `note` says how to read them."""

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]

    @property
    def points(self) -> list[Point]:
        """The points of all lines."""
        return [point for panel in self.panels for line in panel.lines for point in line.points]


@dataclass(frozen=True)
class ChartSet:
    """The charts of one model under one penalty, with full attention without penalty.

    `subject` tells this set from others.
    """

    model: str
    penalty: str
    subject: str
    rows: tuple[ReportRow, ...]
    charts: tuple[Chart, ...]

    def chart(self, key: str) -> Chart:
        """The chart with that key."""
        return next(chart for chart in self.charts if chart.key == key)


def chart_sets(report: Report) -> list[ChartSet]:
    """The charts of every model and penalty with a sparse configuration, in reading order."""
    models = short_names(row.model for row in report.rows)
    rows = short_named(report.rows)
    sparse = [row for row in rows if row.budget is not None]
    names = sorted({row.model for row in sparse})
    sets = []
    for model in names:
        for penalty in by_penalty([row for row in sparse if row.model == model]):
            of_model = [row for row in rows if row.model == model]
            shown = [
                r for r in of_model if r.penalty == penalty or r.is_baseline or r.role == "null"
            ]
            pools = [p for p in report.pools if (models[p.model], p.penalty) == (model, penalty)]
            subject = [model] if len(names) > 1 else []
            subject += [] if penalty == "none" else [f"penalty {penalty}"]
            charts = (*_against_budget(shown), *_of_detectors(shown, pools))
            if report.against_random is not None:
                charts = (_comparison(shown),)
            sets.append(ChartSet(model, penalty, ", ".join(subject), tuple(shown), charts))
    return sets


def _comparison(rows: Sequence[ReportRow]) -> Chart:
    """What each method saves of keys against the answers it loses or gains, at one budget."""
    sparse = [row for row in rows if row.is_sparse]
    styles, lines = _styles([sparse]), []
    for label, (row,) in series(sparse).items():
        total = _saving(row.keys_read_per_solved_ratio.rest, row.accuracy_change, label)
        lines.append(Series(label, styles[label], (), total))
    return Chart(
        "comparison",
        "Answers and keys per solved problem against full attention's",
        "full attention is where the lines cross, right of it is cheaper; bars: 95% intervals, "
        "none where fewer than six problems differ; a method that solves none has no mark",
        Axis("keys saved per solved problem", "percent"),
        Axis("change of accuracy, points", "points"),
        (Panel(rows[0].dataset, tuple(lines)),),
    )


# ---------------------------------------------------------------- against budget


@dataclass(frozen=True)
class _Measure:
    key: str
    title: str
    note: str
    axis: Axis
    of: Callable[[ReportRow], Interval]


_MEASURES = (
    _Measure(
        "accuracy",
        "Accuracy",
        "Share of problems solved, with 95% intervals; the band is full attention.",
        Axis("accuracy", "percent", low=0, high=1),
        lambda row: row.accuracy,
    ),
    _Measure(
        "length",
        "Output length, tokens",
        "Mean tokens of an output, with 95% intervals; an output cut at the cap counts as long as "
        "the cap.",
        Axis("mean output length, tokens", "tokens", low=0),
        lambda row: row.mean_tokens,
    ),
    _Measure(
        "cost",
        "Cost of a solved problem, times full attention's",
        "Keys read per solved problem over full attention's, on a logarithmic scale, with 95% "
        "intervals. Below the line a method is cheaper than full attention.",
        Axis("times full attention's", "times", is_log=True),
        # Full attention is 1 even where every pair is censored.
        lambda row: Interval(1.0) if row.is_baseline else row.keys_read_per_solved_ratio,
    ),
    _Measure(
        "compression",
        "Compression ratio",
        "Compressed over original bytes of whole outputs: low where a text repeats itself.",
        Axis("compressed / original bytes", "ratio", low=0),
        lambda row: row.compression_ratio,
    ),
)


def _against_budget(rows: Iterable[ReportRow]) -> list[Chart]:
    plain = [row for row in rows if row.detector == "none"]
    sparse = [row for row in plain if row.budget is not None]
    budgets = tuple(sorted({row.budget for row in sparse if row.budget is not None}))
    x = Axis("cache budget, tokens", "tokens", is_log=True, ticks=budgets)
    datasets = sorted({row.dataset for row in sparse}, key=dataset_order)
    parts = [[row for row in plain if row.dataset == dataset] for dataset in datasets]
    styles = _styles([[row for row in part if row.budget is not None] for part in parts])
    charts = []
    for m in _MEASURES:
        panels = tuple(_panel(part, m, styles) for part in parts)
        charts.append(Chart(m.key, m.title, m.note, x, m.axis, panels))
    return [*charts, *_by_depth(parts, styles, budgets[(len(budgets) - 1) // 2])]


def _styles(parts: Iterable[list[ReportRow]]) -> dict[str, Style]:
    """A style for each label; methods and controls are counted separately."""
    styles: dict[str, Style] = {}
    for part in parts:
        for label, line in series(part).items():
            role = line[0].role
            at = sum(style.role == role for style in styles.values())
            styles.setdefault(label, Style(role, at))
    return styles


def _panel(part: list[ReportRow], measure: _Measure, styles: Mapping[str, Style]) -> Panel:
    levels = [
        Series(row.backend, Style("full" if row.is_baseline else "null"), (_point(row, measure),))
        for row in part
        if row.is_baseline or row.role == "null"
        if measure.of(row).estimate is not None
    ]
    lines = [
        Series(label, styles[label], tuple(_point(row, measure) for row in line))
        for label, line in series([row for row in part if row.budget is not None]).items()
    ]
    absent: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        for point in line.points:
            if point.missing:
                absent.setdefault(point.missing, {}).setdefault(line.name, []).append(f"{point.x}")
    words = counted(max(row.problems for row in part), "problem")
    censored = max(row.pairs_censored for row in part)
    if measure.key == "cost" and censored:
        words += f", {censored} in no ratio"
    reasons = (
        f"{why}: " + "; ".join(f"{name} {', '.join(at)}" for name, at in names.items())
        for why, names in absent.items()
    )
    return Panel(f"{part[0].dataset} ({words})", tuple(lines), tuple(levels), tuple(reasons))


def _point(row: ReportRow, measure: _Measure) -> Point:
    value = measure.of(row)
    words = f"{row.capped} of {row.samples} cut at the cap" if row.capped else ""
    missing = "" if value.estimate is not None else _why(row, measure)
    return Point(row.budget, value.estimate, value.low, value.high, words=words, missing=missing)


def _why(row: ReportRow, measure: _Measure) -> str:
    """Why a configuration has no such number."""
    if not row.is_complete:
        there = row.samples - row.missing - row.errors
        return f"{there} of {row.samples} samples, not comparable"
    if measure.key == "cost" and row.accuracy.estimate == 0:
        return NONE_SOLVED
    return "not known" if measure.key != "cost" else "no full attention to compare with"


def _by_depth(
    parts: Sequence[Sequence[ReportRow]], styles: Mapping[str, Style], budget: int
) -> list[Chart]:
    """Needles found by depth at one budget, a panel for each data set of needles."""
    panels = []
    for part in parts:
        shown = [row for row in part if row.recall_by_depth and row.budget in (None, budget)]
        lines = []
        for label, (row, *_) in series([row for row in shown if row.role != "null"]).items():
            shares = [((at + PART / 2) / 100, share) for at, share in row.recall_by_depth.items()]
            points = tuple(Point(at, x.estimate, x.low, x.high) for at, x in shares)
            lines.append(Series(label, styles.get(label, Style("full")), points))
        panels += [Panel(part[0].dataset, tuple(lines))] if lines else []
    note = f"Share of needles that answers give, at a budget of {budget}, with 95% intervals."
    x, y = (Axis(name, "percent", low=0, high=1) for name in ("depth in the text", "needles found"))
    return [Chart("depths", "Needles found by depth", note, x, y, tuple(panels))] if panels else []


# ---------------------------------------------------------------- detectors


def _of_detectors(rows: Sequence[ReportRow], pools: Sequence[DetectorPool]) -> list[Chart]:
    """What detectors save against the answers they change, over the same configurations."""
    most = max((pool.cells for pool in pools), default=0)
    lines: list[Series] = []
    for pool in pools:
        total = _saving(pool.effect.tokens, pool.effect.change, "all configurations")
        if pool.cells == most and total is not None:
            points = [
                _saving(effect.tokens, effect.change, f"{row.backend} {row.budget}, {row.dataset}")
                for row in rows
                if row.detector_action == (pool.detector, pool.action)
                and row.is_sparse
                and row.role == "method"
                and (effect := row.detector_effect) is not None
            ]
            name = f"{pool.detector} ({pool.action})"
            style = Style("method", len(lines))
            lines.append(Series(name, style, tuple(filter(None, points)), total))
    if not lines:
        return []
    return [
        Chart(
            "detectors",
            "Change of accuracy, points, against tokens saved",
            "Detectors and actions against the same traces left alone: small marks are "
            "configurations, large ones all of them together, with 95% intervals. An action that "
            "only some methods can carry out is in the table alone.",
            Axis("tokens saved", "percent"),
            Axis("change of accuracy, points", "points"),
            (Panel(f"all data sets ({counted(most, 'configuration')})", tuple(lines)),),
        )
    ]


def _saving(saved: Interval, change: Interval, words: str) -> Point | None:
    if saved.estimate is None or change.estimate is None:
        return None
    ends = change.low, change.high, saved.low, saved.high
    return Point(saved.estimate, change.estimate, *ends, words=words)
