"""Figure 5: what every detector and action saves, against the answers it changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from experiments.report.charts import ChartSet, Panel, Series
from experiments.report.figures.style import (
    FULL,
    finish,
    footer,
    look,
    panel_title,
    panels,
)

_MARKS = "large: all sparse configurations of the panel together, 95% intervals; small: each alone"


def detectors(of: ChartSet, under: str, conditions: Sequence[str]) -> Figure | None:
    """One row of panels a chart, the last of wasted tokens; None where there is no detector.

    A large mark is a detector and action over all of the panel, its bars 95% intervals; a small one
    is one configuration.
    """
    charts = [chart for chart in of.charts if chart.key in ("detectors", "waste")]
    if not charts:
        return None
    wide = max(len(chart.panels) for chart in charts)
    figure, axes = panels([2.9] * len(charts), wide, share_x=False)
    lines: dict[str, Series] = {}
    for down, chart in enumerate(charts):
        for across, panel in enumerate(chart.panels):
            axis = axes[down][across]
            _draw(axis, panel)
            axis.set_title(panel_title(panel.dataset, panel.words))
            axis.set_xlabel(chart.x.label)
            lines |= {line.name: line for line in panel.series}
        axes[down][0].set_ylabel(chart.y.label)
        for axis in axes[down][len(chart.panels) :]:
            axis.remove()
    notes = footer([row for row in of.rows if row.backend != "full"], conditions)
    notes.append(_MARKS)
    if len(charts) > 2:
        notes.append(
            "rows of panels: an action that only some backends can carry out is compared over those"
        )
    title = f"What detectors save against what they cost in answers{under}"
    finish(figure, title, _handles(list(lines.values())), notes)
    return figure


def _draw(axis: Any, panel: Panel) -> None:
    axis.axhline(0, color=FULL, linewidth=0.8, zorder=1)
    axis.axvline(0, color=FULL, linewidth=0.8, zorder=1)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    for line in panel.series:
        colour, mark = look(line.style)
        for point in line.points:
            y = _points(point.y)
            axis.plot([point.x], [y], mark, color=colour, markersize=3, alpha=0.3, zorder=2)
        if (total := line.total) is None:
            continue
        x, y = total.x, _points(total.y)
        if total.left is not None and total.right is not None:
            axis.hlines(y, total.left, total.right, color=colour, linewidth=1.1, zorder=3)
        if total.low is not None and total.high is not None:
            ends = _points(total.low), _points(total.high)
            axis.vlines(x, *ends, color=colour, linewidth=1.1, zorder=3)
        axis.plot([x], [y], mark, color=colour, markersize=6.5, zorder=4)
    axis.step(
        [x for x, _ in panel.front],
        [_points(y) for _, y in panel.front],
        where="pre",
        color="#888888",
        linestyle="--",
        linewidth=1.0,
        zorder=1.5,
    )
    axis.margins(0.1)


def _points(share: float | None) -> float:
    assert share is not None, "what is not known is not in a chart of detectors"
    return 100 * share


def _handles(lines: list[Series]) -> list[Line2D]:
    handles = []
    for line in lines:
        colour, mark = look(line.style)
        handles.append(Line2D([], [], color=colour, marker=mark, linestyle="none", label=line.name))
    handles.append(Line2D([], [], color="#888888", linestyle="--", linewidth=1.0, label="front"))
    return handles
