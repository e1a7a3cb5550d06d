"""Figure 5: what every detector and action saves, against the answers it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from experiments.report.aggregate import by_problem, paid_of
from experiments.report.bootstrap import Bootstrap
from experiments.report.figures.footer import Conditions, footer
from experiments.report.figures.style import COLOURS, FULL, MARKS, finish, panel_title, panels
from experiments.report.row import Key, ReportRow, dataset_order, pairs
from experiments.report.statistics import Interval
from experiments.report.stopping import pooled as whole
from experiments.store.samples.sample import Sample

Watched = tuple[str, str]
Place = tuple[str, Key]  # a data set and a configuration in it

_MOST = 3  # rows of panels
_WASTE = {"loops": "loops", "tails": "tails seen before"}
_ACTIONS = ("stop", "answer", "regenerate", "densify")


@dataclass(frozen=True)
class Pooled:
    """What a detector does over several configurations together.

    Attributes:
        savings: 1 - tokens paid with it / without.
        change: of accuracy.
    """

    savings: Interval
    change: Interval


def pareto(
    samples: Sequence[Sample], rows: list[ReportRow], under: str, conditions: Conditions
) -> Figure | None:
    """One column a data set; None where the rows have no detector.

    A large mark is a detector and action over all sparse configurations of the panel, its bars 95%
    intervals with problems resampled; a small one is one configuration. The front leads through
    what no other detector and action beats in both. Not every action suits every backend: those
    that share the same configurations are in one row of panels, so that all in a panel are over
    the same runs. The last row is over all of them and all data sets: what is spared of the tokens
    that were wasted, in the place of what is saved of all.
    """
    covers = _covers(rows)
    if not covers:
        return None
    rows_of_panels = _sets(covers)
    datasets = sorted(
        {dataset for cover in covers.values() for dataset, _ in cover}, key=dataset_order
    )
    shown, wide = len(rows_of_panels[:_MOST]), max(len(datasets), len(_WASTE))
    figure, axes = panels([2.9] * (shown + 1), wide, share_x=False)
    for axis in (*axes[:shown, len(datasets) :].flat, *axes[shown, len(_WASTE) :]):
        axis.remove()
    bootstrap = Bootstrap(conditions.seed or 0)
    sparse = _sparse(rows)
    for down, shared in enumerate(rows_of_panels[:_MOST]):
        for across, dataset in enumerate(datasets):
            here = {key for of, key in shared if of == dataset}
            axis = axes[down][across]
            found = {}
            for watched, cover in covers.items():
                if shared <= cover and here:
                    found[watched] = pooled(samples, dataset, here, watched, bootstrap)
                    few = [row for row in sparse if row.watched == watched and row.key in here]
                    _draw_small(axis, few, list(covers))
            _draw(axis, found, list(covers))
            configurations = f"{len(here)} configuration" + ("" if len(here) == 1 else "s")
            axis.set_title(panel_title(dataset, configurations))
            axis.set_xlabel("tokens saved")
            if across == 0:
                axis.set_ylabel("change of accuracy, points")
    everywhere = [one for one in whole.pooled(samples, bootstrap.seed) if not one.missing]
    most = max((one.samples for one in everywhere), default=0)
    for axis, (name, told) in zip(axes[shown], _WASTE.items(), strict=False):
        found = {
            (one.detector, one.action): Pooled(getattr(one, name), one.net)
            for one in everywhere
            if one.samples == most
        }
        _draw(axis, found, list(covers))
        axis.set_title(panel_title("all data sets", told))
        axis.set_xlabel(f"of tokens wasted in {told}, spared")
    axes[shown, 0].set_ylabel("change of accuracy, points")
    notes = footer([row for row in rows if row.backend != "full"], conditions)
    notes.append(
        "large: all sparse configurations of the panel together, 95% intervals; small: each alone"
    )
    if len(rows_of_panels) > 1:
        notes.append(
            "rows of panels: an action that only some backends can carry out is compared over those"
        )
    if len(rows_of_panels) > _MOST:
        notes.append(f"{len(rows_of_panels) - _MOST} smaller sets of configurations are not shown")
    title = f"What detectors save against what they cost in answers{under}"
    finish(figure, title, _handles(list(covers)), notes)
    return figure


def _sparse(rows: Sequence[ReportRow]) -> list[ReportRow]:
    return [row for row in rows if row.backend != "full" and row.is_complete and row.detector_pairs]


def _covers(rows: Sequence[ReportRow]) -> dict[Watched, frozenset[Place]]:
    """Where each detector and action was measured."""
    places: dict[Watched, set[Place]] = {watched: set() for watched in pairs(_sparse(rows))}
    for row in _sparse(rows):
        if row.watched in places:
            places[row.watched].add((row.dataset, row.key))
    return {watched: frozenset(of) for watched, of in places.items()}


def _sets(covers: dict[Watched, frozenset[Place]]) -> list[frozenset[Place]]:
    """The different sets of configurations, the largest first."""
    return sorted(set(covers.values()), key=lambda cover: (-len(cover), sorted(map(repr, cover))))


def pooled(
    samples: Iterable[Sample],
    dataset: str,
    keys: set[Key],
    watched: Watched,
    bootstrap: Bootstrap,
) -> Pooled:
    """What a detector does over these configurations of a data set together, problems resampled."""
    alone: dict[tuple[object, ...], Sample] = {}
    under: dict[tuple[object, ...], Sample] = {}
    for one in samples:
        key = _key(one)
        if one.dataset == dataset and key in keys:
            if one.detector == "none":
                alone[key, one.pair] = one
            elif (one.detector, one.action) == watched:
                under[key, one.pair] = one
    both = [(mine, alone[at]) for at, mine in under.items() if at in alone]
    tokens = [(m, t) for m, t in both if m.tokens is not None and t.tokens is not None]
    scored = [(m, t) for m, t in tokens if m.correct is not None and t.correct is not None]
    kept = by_problem((m.item_id, paid_of(m), paid_of(t)) for m, t in tokens)
    moved = by_problem(
        (m.item_id, float(bool(m.correct)) - float(bool(t.correct)), 1) for m, t in scored
    )
    return Pooled(
        bootstrap.of_sums(kept, lambda sums: 1 - sums[0] / sums[1]), bootstrap.ratio(moved)
    )


def _key(one: Sample) -> Key:
    told = repr(sorted(one.backend_params))
    return one.model, one.dataset, one.penalty, one.backend, one.budget, told


def front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats in one number without losing in the other, by the first."""
    apart = set(points)
    return sorted(
        one
        for one in apart
        if not any(other[0] >= one[0] and other[1] >= one[1] and other != one for other in apart)
    )


def _look(watched: Watched, among: Sequence[Watched]) -> tuple[str, str]:
    """A colour for each detector, a mark for each action."""
    names = list(dict.fromkeys(name for name, _ in among))
    actions = sorted(
        {action for _, action in among},
        key=lambda one: (_ACTIONS.index(one) if one in _ACTIONS else len(_ACTIONS), one),
    )
    colour = COLOURS[names.index(watched[0]) % len(COLOURS)]
    return colour, MARKS[actions.index(watched[1]) % len(MARKS)]


def _draw_small(axis: Any, few: Sequence[ReportRow], among: Sequence[Watched]) -> None:
    for row in few:
        if (
            row.token_savings.estimate is not None
            and row.detector_accuracy_change.estimate is not None
        ):
            colour, mark = _look(row.watched, among)
            x, y = row.token_savings.estimate, 100 * row.detector_accuracy_change.estimate
            axis.plot([x], [y], mark, color=colour, markersize=3, alpha=0.3, zorder=2)


def _draw(axis: Any, found: dict[Watched, Pooled], among: list[Watched]) -> None:
    axis.axhline(0, color=FULL, linewidth=0.8, zorder=1)
    axis.axvline(0, color=FULL, linewidth=0.8, zorder=1)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    places = [(0.0, 0.0)]  # without a detector
    for watched, point in found.items():
        saved, change = point.savings, point.change
        if saved.estimate is None or change.estimate is None:
            continue
        colour, mark = _look(watched, among)
        x, y = saved.estimate, 100 * change.estimate
        places.append((x, y))
        if saved.low is not None and saved.high is not None:
            axis.hlines(y, saved.low, saved.high, color=colour, linewidth=1.1, zorder=3)
        if change.low is not None and change.high is not None:
            axis.vlines(
                x, 100 * change.low, 100 * change.high, color=colour, linewidth=1.1, zorder=3
            )
        axis.plot([x], [y], mark, color=colour, markersize=6.5, zorder=4)
    best = front(places)
    axis.step(
        [x for x, _ in best],
        [y for _, y in best],
        where="pre",
        color="#888888",
        linestyle="--",
        linewidth=1.0,
        zorder=1.5,
    )
    axis.margins(0.1)


def _handles(among: list[Watched]) -> list[Line2D]:
    found = []
    for name, action in among:
        colour, mark = _look((name, action), among)
        found.append(
            Line2D([], [], color=colour, marker=mark, linestyle="none", label=f"{name} ({action})")
        )
    found.append(Line2D([], [], color="#888888", linestyle="--", linewidth=1.0, label="front"))
    return found
