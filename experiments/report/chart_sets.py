"""Charts made of rows: the one place that chooses rows, detector and styles of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.report.bootstrap import Bootstrap
from experiments.report.charts import (
    NONE_SOLVED,
    Axis,
    Chart,
    ChartSet,
    DetectorAction,
    Panel,
    Point,
    Series,
    Style,
    front,
)
from experiments.report.names import shortly_named
from experiments.report.pooled import DetectorEffect, DetectorPool, effect, paired
from experiments.report.row import (
    ReportRow,
    by_penalty,
    dataset_order,
    pairs,
    series,
    shown_detector,
)
from experiments.report.statistics import Interval
from experiments.store.samples.sample import Key, Sample

_SETS = 3  # of configurations that detectors are compared over, each a chart
_ACTIONS = ("stop", "answer", "regenerate", "densify")


def chart_sets(
    rows: Sequence[ReportRow],
    samples: Iterable[Sample] = (),
    pooled: Sequence[DetectorPool] = (),
    seed: int = 0,
) -> list[ChartSet]:
    """The charts of every model and penalty with a sparse configuration, in reading order.

    Args:
        rows: of a report.
        samples, pooled: what they were made of, and what was pooled of it; without samples there
            are no charts of detectors.
        seed: of the bootstrap.
    """
    short = {id(row): named for row, named in zip(rows, shortly_named(rows), strict=True)}
    sparse = [row for row in rows if row.budget is not None]
    models = sorted({row.model for row in sparse}, key=lambda name: _short(name, rows, short))
    of_pairs = paired(samples)
    found = []
    for model in models:
        for penalty in by_penalty([row for row in sparse if row.model == model]):
            mine = [row for row in rows if (row.model, row.penalty) == (model, penalty)]
            shown = [
                short[id(row)]
                for row in rows
                if row.model == model
                and (row.penalty == penalty or row.is_baseline or row.role == "null")
            ]
            name = _short(model, rows, short)
            subject = [name] if len(models) > 1 else []
            subject += [] if penalty == "none" else [f"penalty {penalty}"]
            detector = shown_detector([row for row in shown if row.budget is not None])
            charts = _against_budget(shown, detector)
            if of_pairs:
                names = {row.dataset: short[id(row)].dataset for row in mine}
                own = [one for one in pooled if (one.model, one.penalty) == (model, penalty)]
                charts += _of_detectors(mine, names, of_pairs, own, Bootstrap(seed))
            others = tuple(one for one in pairs(shown) if one != detector)
            found.append(
                ChartSet(
                    name, penalty, ", ".join(subject), tuple(shown), tuple(charts), detector, others
                )
            )
    return found


def _short(model: str, rows: Sequence[ReportRow], short: Mapping[int, ReportRow]) -> str:
    return next(short[id(row)].model for row in rows if row.model == model)


# ---------------------------------------------------------------- against budget


@dataclass(frozen=True)
class _Measure:
    key: str
    title: str
    note: str
    axis: Axis
    of: Callable[[ReportRow], Interval]


def _cut(row: ReportRow) -> Interval:
    return Interval(row.capped / row.samples if row.is_complete else None, None, None)


def _cost(row: ReportRow) -> Interval:
    if row.is_baseline and row.detector == "none":
        # Measured against itself, and 1 even where every pair is censored.
        return Interval(1.0, None, None)
    return row.keys_read_per_solved_ratio


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
        "Mean tokens of an output, with 95% intervals; what was cut counts as long as it was let.",
        Axis("mean output length, tokens", "tokens", low=0),
        lambda row: row.mean_tokens,
    ),
    _Measure(
        "cut",
        "Cut at the cap",
        "Share of outputs cut at the cap: where it is high, lengths and ratios are lower bounds.",
        Axis("cut at the cap", "percent", low=0, high=1),
        _cut,
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
    """A style for each label; those of methods and of controls are counted apart."""
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
    found = []
    for row in plain:
        if row.budget is None and (row.is_baseline or row.role == "null"):
            at = measure.of(row)
            if at.estimate is not None:
                style = Style("full" if row.is_baseline else "null")
                level = Point(None, at.estimate, at.low, at.high)
                found.append(Series(row.backend, style, (level,)))
    found.sort(key=lambda one: one.style.role != "full")
    lines = series([row for row in plain if row.budget is not None])
    for label, line in lines.items():
        points = tuple(_point(row, measure, full) for row in line)
        found.append(Series(label, styles[label], points))
    under = series([row for row in part if row.watched == detector and row.budget is not None])
    for label, line in under.items():
        alone = {row.budget: measure.of(row).estimate for row in lines.get(label, [])}
        if label in lines and any(measure.of(r).estimate != alone.get(r.budget) for r in line):
            points = tuple(replace(_point(row, measure, full), low=None, high=None) for row in line)
            found.append(Series(label, styles[label], points, detector))
    words = _count(max(row.problems for row in part), "problem")
    if measure.key == "cost" and (left_out := censored(part)):
        words += f", {left_out} in no ratio"
    return Panel(part[0].dataset, words, tuple(found))


def _point(row: ReportRow, measure: _Measure, full: ReportRow | None) -> Point:
    at = measure.of(row)
    words = f"{row.capped} of {row.samples} cut at the cap" if row.capped else ""
    missing = "" if at.estimate is not None else _why(row, measure, full)
    return Point(row.budget, at.estimate, at.low, at.high, words=words, missing=missing)


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
    names: Mapping[str, str],
    of_pairs: Mapping[tuple[Key, DetectorAction], list[tuple[Sample, Sample]]],
    pooled: Sequence[DetectorPool],
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
        if row.is_sparse and row.role == "method" and row.is_complete and row.detector_pairs
    ]
    covers = {watched: frozenset(under) for watched, under in pairs(known).items()}
    if not covers:
        return []
    styles = _detector_styles(covers)
    sets = sorted(set(covers.values()), key=lambda one: (-len(one), sorted(map(repr, one))))
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
        datasets = {row.dataset for row in known if row.key in shared}
        panels = []
        for dataset in sorted(datasets, key=lambda one: dataset_order(names[one])):
            here = [row for row in known if row.dataset == dataset and row.key in shared]
            found = []
            for watched, style in styles.items():
                if shared <= covers[watched]:
                    own = [row for row in here if row.watched == watched]
                    of_all = [pair for row in own for pair in of_pairs.get((row.key, watched), ())]
                    total = effect(of_all, bootstrap)
                    points = tuple(filter(None, map(_saving, own)))
                    found.append(_detector(watched, style, points, total.tokens, total))
            words = _count(len({row.key for row in here}), "configuration")
            panels.append(_scatter(names[dataset], words, found))
        title = "Change of accuracy, points, against tokens saved"
        x = Axis("tokens saved", "percent")
        charts.append(Chart("detectors", title, note, x, y, tuple(panels)))
    whole = {(one.detector, one.action): one for one in pooled if not one.missing}
    most = max((one.samples for one in whole.values()), default=0)
    shown = [(one, style) for one, style in styles.items() if one in whole]
    shown = [(one, style) for one, style in shown if whole[one].samples == most]
    panels = [
        _scatter(
            "all data sets",
            words,
            [
                _detector(watched, style, (), getattr(whole[watched], name), whole[watched])
                for watched, style in shown
            ],
        )
        for name, words in (("loops", "loops"), ("tails", "tails seen before"))
    ]
    title = "Change of accuracy, points, against wasted tokens spared"
    note = (
        "Of the tokens that unsolved texts cut by the cap spent saying again what stood there, the "
        "share that a detector and action spares; all data sets and methods together."
    )
    x = Axis("of the tokens wasted, spared", "percent")
    return [*charts, Chart("waste", title, note, x, y, tuple(panels))]


def _detector_styles(covers: Iterable[DetectorAction]) -> dict[DetectorAction, Style]:
    """A colour for each detector, a mark for each action."""
    every = list(covers)
    names = list(dict.fromkeys(name for name, _ in every))
    actions = sorted(
        {action for _, action in every},
        key=lambda one: (_ACTIONS.index(one) if one in _ACTIONS else len(_ACTIONS), one),
    )
    return {one: Style("detector", names.index(one[0]), actions.index(one[1])) for one in every}


def _saving(row: ReportRow) -> Point | None:
    saved, change = row.token_savings, row.detector_accuracy_change
    if saved.estimate is None or change.estimate is None:
        return None
    words = f"{row.backend} {row.budget}"
    return Point(saved.estimate, change.estimate, change.low, change.high, words=words)


def _detector(
    watched: DetectorAction,
    style: Style,
    points: tuple[Point, ...],
    saved: Interval,
    of_all: DetectorEffect | DetectorPool,
) -> Series:
    net, total = of_all.net, None
    if saved.estimate is not None and net.estimate is not None:
        words = "all configurations"
        ends = saved.low, saved.high
        total = Point(saved.estimate, net.estimate, net.low, net.high, *ends, words=words)
    return Series(f"{watched[0]} ({watched[1]})", style, points, total=total)


def _scatter(dataset: str, words: str, found: list[Series]) -> Panel:
    totals = [(one.x, one.y) for one in (line.total for line in found) if one is not None]
    known = [(x, y) for x, y in totals if x is not None and y is not None]
    return Panel(dataset, words, tuple(found), front([(0.0, 0.0), *known]))
