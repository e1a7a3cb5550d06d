"""Charts made of a report: the only place that chooses rows, detector and styles of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.report.bootstrap import Bootstrap
from experiments.report.charts import (
    NONE_SOLVED,
    Axis,
    Chart,
    ChartSet,
    Panel,
    Point,
    Series,
    Style,
    front,
)
from experiments.report.names import series, short_named, short_names
from experiments.report.pairs import Pairs, detector_effect
from experiments.report.pools import DetectorPool, paired_traces
from experiments.report.row import (
    DetectorAction,
    ReportRow,
    by_detector,
    by_penalty,
    dataset_order,
    shown_detector,
)
from experiments.report.statistics import Interval
from experiments.store.samples.sample import Key

if TYPE_CHECKING:
    from experiments.report.report import Report

_SETS = 3  # of configurations that detectors are compared over, each a chart
_ACTIONS = ("stop", "answer", "regenerate", "densify")


def chart_sets(report: Report) -> list[ChartSet]:
    """The charts of every model and penalty with a sparse configuration, in reading order."""
    models = short_names(row.model for row in report.rows)
    datasets = short_names(row.dataset for row in report.rows)
    rows = short_named(report.rows)
    sparse = [row for row in report.rows if row.budget is not None]
    traces, bootstrap = paired_traces(report.samples), Bootstrap(report.seed)
    sets = []
    for model in sorted({row.model for row in sparse}, key=models.__getitem__):
        for penalty in by_penalty([row for row in sparse if row.model == model]):
            shown = [
                row
                for row in rows
                if row.model == models[model]
                and (row.penalty == penalty or row.is_baseline or row.role == "null")
            ]
            subject = [models[model]] if len({row.model for row in sparse}) > 1 else []
            subject += [] if penalty == "none" else [f"penalty {penalty}"]
            detector = shown_detector([row for row in shown if row.budget is not None])
            own = [row for row in report.rows if (row.model, row.penalty) == (model, penalty)]
            pools = [p for p in report.pools if (p.model, p.penalty) == (model, penalty)]
            charts = _against_budget(shown, detector)
            charts += _of_detectors(own, datasets, traces, pools, bootstrap)
            others = tuple(pair for pair in by_detector(shown) if pair != detector)
            sets.append(
                ChartSet(
                    models[model],
                    penalty,
                    ", ".join(subject),
                    tuple(shown),
                    tuple(charts),
                    detector,
                    others,
                )
            )
    return sets


# ---------------------------------------------------------------- against budget


@dataclass(frozen=True)
class _Measure:
    key: str
    title: str
    note: str
    axis: Axis
    of: Callable[[ReportRow], Interval]


def _cost(row: ReportRow) -> Interval:
    # Full attention is 1 even where every pair is censored.
    is_full = row.is_baseline and row.detector == "none"
    return Interval(1.0) if is_full else row.keys_read_per_solved_ratio


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
        "cut",
        "Cut at the cap",
        "Share of outputs cut at the cap: where it is high, lengths and ratios are lower bounds.",
        Axis("cut at the cap", "percent", low=0, high=1),
        lambda row: Interval(row.capped / row.samples if row.is_complete else None),
    ),
    _Measure(
        "cost",
        "Cost of a solved problem, times full attention's",
        "Keys read per solved problem over full attention's, on a logarithmic scale, with 95% "
        "intervals. Below the line a method is cheaper than full attention.",
        Axis("times full attention's", "times", is_log=True),
        _cost,
    ),
    _Measure(
        "compression",
        "Compression ratio",
        "Compressed over original bytes of whole outputs: low where a text repeats itself.",
        Axis("compressed / original bytes", "ratio", low=0),
        lambda row: row.compression_ratio,
    ),
)


def _against_budget(rows: list[ReportRow], detector: DetectorAction | None) -> list[Chart]:
    sparse = [row for row in rows if row.budget is not None]
    budgets = sorted({row.budget for row in sparse if row.budget is not None})
    x = Axis("cache budget, tokens", "tokens", is_log=True, ticks=tuple(budgets))
    datasets = sorted({row.dataset for row in sparse}, key=dataset_order)
    styles = _styles([row for row in sparse if row.detector == "none"], datasets)
    charts = []
    for measure in _MEASURES:
        panels = tuple(
            _panel([row for row in rows if row.dataset == dataset], measure, styles, detector)
            for dataset in datasets
        )
        note = measure.note
        if detector is not None and any(panel.under_detector for panel in panels):
            note += f" Dotted: with {detector[0]}, where it moves the point."
        charts.append(Chart(measure.key, measure.title, note, x, measure.axis, panels))
    return charts


def _styles(plain: list[ReportRow], datasets: list[str]) -> dict[str, Style]:
    """A style for each label; methods and controls are counted separately."""
    styles: dict[str, Style] = {}
    counts: dict[str, int] = {}
    for dataset in datasets:
        for label, line in series([row for row in plain if row.dataset == dataset]).items():
            if label not in styles:
                role = line[0].role
                at = counts[role] = counts.get(role, -1) + 1
                styles[label] = Style(role, at, at)
    return styles


def _panel(
    part: list[ReportRow],
    measure: _Measure,
    styles: Mapping[str, Style],
    detector: DetectorAction | None,
) -> Panel:
    plain = [row for row in part if row.detector == "none"]
    full = next((row for row in plain if row.is_baseline), None)
    levels, lines = [], []
    for row in plain:
        if row.budget is None and (row.is_baseline or row.role == "null"):
            value = measure.of(row)
            if value.estimate is not None:
                style = Style("full" if row.is_baseline else "null")
                level = Point(None, value.estimate, value.low, value.high)
                levels.append(Series(row.backend, style, (level,)))
    levels.sort(key=lambda level: level.style.role != "full")
    by_label = series([row for row in plain if row.budget is not None])
    for label, line in by_label.items():
        points = tuple(_point(row, measure, full) for row in line)
        lines.append(Series(label, styles[label], points))
    under = series([r for r in part if r.detector_action == detector and r.budget is not None])
    for label, line in under.items():
        without = {row.budget: measure.of(row).estimate for row in by_label.get(label, [])}
        moved = any(measure.of(row).estimate != without.get(row.budget) for row in line)
        if label in by_label and moved:
            points = tuple(replace(_point(row, measure, full), low=None, high=None) for row in line)
            lines.append(Series(label, styles[label], points, detector))
    words = _count(max(row.problems for row in part), "problem")
    if measure.key == "cost" and (left_out := censored(part)):
        words += f", {left_out} in no ratio"
    return Panel(part[0].dataset, words, (*levels, *lines))


def _point(row: ReportRow, measure: _Measure, full: ReportRow | None) -> Point:
    value = measure.of(row)
    words = f"{row.capped} of {row.samples} cut at the cap" if row.capped else ""
    missing = "" if value.estimate is not None else _why(row, measure, full)
    return Point(row.budget, value.estimate, value.low, value.high, words=words, missing=missing)


def _why(row: ReportRow, measure: _Measure, full: ReportRow | None) -> str:
    """Why a configuration has no such number."""
    if not row.is_complete:
        there = row.samples - row.missing - row.errors
        return f"{there} of {row.samples} samples, not comparable"
    if measure.key != "cost":
        return "not known"
    if row.accuracy.estimate == 0:
        return NONE_SOLVED
    if full is None or not full.is_complete:
        return "nothing to compare with, full attention is not complete"
    if full.accuracy.estimate == 0:
        return "full attention solves none, there is no ratio"
    if full.pairs_censored == full.pairs:
        return "full attention was always cut at its cap, no ratio"
    return "no ratio is known"


def censored(rows: Sequence[ReportRow]) -> int:
    """The most pairs of a configuration that are in no ratio: full attention was cut itself."""
    return max((row.pairs_censored for row in rows if row.detector == "none"), default=0)


def _count(count: int, of: str) -> str:
    return f"{count} {of}" + ("" if count == 1 else "s")


# ---------------------------------------------------------------- detectors


def _of_detectors(
    rows: Sequence[ReportRow],
    datasets: Mapping[str, str],
    traces: Mapping[tuple[Key, DetectorAction], Pairs],
    pools: Sequence[DetectorPool],
    bootstrap: Bootstrap,
) -> list[Chart]:
    """What every detector and action saves against the answers it changes; none without any.

    Not every action suits every method: those that share the same configurations are in one chart,
    so that all in a panel are over the same runs. The last chart is over all of them and all data
    sets: what is spared of the tokens that were wasted, in the place of what is saved of all.
    """
    known = [
        row
        for row in rows
        if row.is_sparse and row.role == "method" and row.is_complete and _saving(row) is not None
    ]
    covers = {pair: frozenset(under) for pair, under in by_detector(known).items()}
    if not covers:
        return []
    styles = _detector_styles(covers)
    sets = sorted(set(covers.values()), key=lambda keys: (-len(keys), sorted(map(repr, keys))))
    y = Axis("change of accuracy, points", "points")
    note = (
        "Every detector and action against the same traces left alone: small marks are "
        "configurations, large ones all of the panel together, over the pairs that were scored, "
        "with 95% intervals. The line joins what no other choice beats in both, stopping nothing "
        "among them."
    )
    if len(sets) > 1:
        note += " An action that only some methods can carry out is compared over those."
    if len(sets) > _SETS:
        note += f" {len(sets) - _SETS} smaller sets of configurations are not shown."
    charts = []
    for shared in sets[:_SETS]:
        names = {row.dataset for row in known if row.key in shared}
        panels = []
        for dataset in sorted(names, key=lambda name: dataset_order(datasets[name])):
            here = [row for row in known if row.dataset == dataset and row.key in shared]
            lines = []
            for pair, style in styles.items():
                if shared <= covers[pair]:
                    own = [row for row in here if row.detector_action == pair]
                    pairs = [both for row in own for both in traces.get((row.key, pair), ())]
                    effect = detector_effect(pairs, bootstrap, pooled=True)
                    points = tuple(filter(None, map(_saving, own)))
                    lines.append(_line(pair, style, points, effect.tokens, effect.change))
            words = _count(len({row.key for row in here}), "configuration")
            panels.append(_scatter(datasets[dataset], words, lines))
        title = "Change of accuracy, points, against tokens saved"
        x = Axis("tokens saved", "percent")
        charts.append(Chart("detectors", title, note, x, y, tuple(panels)))
    return [*charts, _waste(pools, styles, y)]


def _waste(pools: Sequence[DetectorPool], styles: Mapping[DetectorAction, Style], y: Axis) -> Chart:
    """What is spared of wasted tokens, over all data sets and methods."""
    most = max((pool.samples for pool in pools if not pool.missing), default=0)
    whole = {
        (pool.detector, pool.action): pool
        for pool in pools
        if not pool.missing and pool.samples == most
    }
    panels = []
    for name, words in (("loops", "loops"), ("tails", "tails seen before")):
        lines = [
            _line(pair, style, (), getattr(whole[pair], name), whole[pair].effect.change)
            for pair, style in styles.items()
            if pair in whole
        ]
        panels.append(_scatter("all data sets", words, lines))
    title = "Change of accuracy, points, against wasted tokens spared"
    note = (
        "Of the tokens that unsolved texts cut by the cap spent on what they had said before, the "
        "share that a detector and action spares; all data sets and methods together."
    )
    return Chart(
        "waste", title, note, Axis("of the tokens wasted, spared", "percent"), y, tuple(panels)
    )


def _detector_styles(pairs: Iterable[DetectorAction]) -> dict[DetectorAction, Style]:
    """A colour for each detector, a mark for each action."""
    every = list(pairs)
    names = list(dict.fromkeys(name for name, _ in every))
    actions = sorted(
        {action for _, action in every},
        key=lambda a: (_ACTIONS.index(a) if a in _ACTIONS else len(_ACTIONS), a),
    )
    return {pair: Style("detector", names.index(pair[0]), actions.index(pair[1])) for pair in every}


def _saving(row: ReportRow) -> Point | None:
    if row.detector_effect is None:
        return None
    saved, change = row.detector_effect.tokens, row.detector_effect.change
    if saved.estimate is None or change.estimate is None:
        return None
    words = f"{row.backend} {row.budget}"
    return Point(saved.estimate, change.estimate, change.low, change.high, words=words)


def _line(
    pair: DetectorAction, style: Style, points: tuple[Point, ...], saved: Interval, net: Interval
) -> Series:
    total = None
    if saved.estimate is not None and net.estimate is not None:
        ends = saved.low, saved.high
        words = "all configurations"
        total = Point(saved.estimate, net.estimate, net.low, net.high, *ends, words=words)
    return Series(f"{pair[0]} ({pair[1]})", style, points, total=total)


def _scatter(dataset: str, words: str, lines: Sequence[Series]) -> Panel:
    totals = [(line.total.x, line.total.y) for line in lines if line.total is not None]
    known = [(x, y) for x, y in totals if x is not None and y is not None]
    return Panel(dataset, words, tuple(lines), front([(0.0, 0.0), *known]))
