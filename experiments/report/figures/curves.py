"""Figure 3: compressed against original length, one line a sample."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report.charts import ChartSet
from experiments.report.figures.style import cut, finish, footer, panels
from experiments.report.names import series
from experiments.report.row import dataset_order
from experiments.store.samples.sample import Key, Sample

_CORRECT, _INCORRECT = "#1a9850", "#d73027"


def curves(samples: list[Sample], of: ChartSet, under: str, conditions: Sequence[str]) -> Figure:
    """Green correct, red incorrect; one row a backend, at the middle budget measured.

    The paper shows sink and Quest at 1024. Panels of a column have the same axes.
    """
    budgets = of.charts[0].x.ticks
    budget = budgets[(len(budgets) - 1) // 2]
    shown = [row for row in of.rows if (row.detector, row.penalty) == ("none", of.penalty)]
    datasets = sorted({row.dataset for row in shown}, key=dataset_order)
    by_label = {
        label: row
        for dataset in datasets
        for label, line in series([row for row in shown if row.dataset == dataset]).items()
        for row in line
        if row.budget in (None, budget)
    }
    whole = {row.key for row in shown if row.is_complete}
    of_key: dict[Key, list[Sample]] = defaultdict(list)
    for sample in samples:
        of_key[sample.key].append(sample)
    figure, axes = panels([1.75] * len(by_label), len(datasets), share_y=True)
    for down, (label, row) in enumerate(by_label.items()):
        for across, dataset in enumerate(datasets):
            axis = axes[down][across]
            here = (row.key[0], dataset, *row.key[2:])
            if here in whole:
                _draw(axis, of_key[here])
            if down == 0:
                axis.set_title(dataset)
            if down == len(by_label) - 1:
                axis.set_xlabel("original, bytes")
            if across == 0:
                axis.set_ylabel(f"{textwrap.fill(label, 20)}\ncompressed, bytes")
    for axis in axes[-1]:
        # Last, and once per column: a limit set earlier would freeze the scale of all below.
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    handles = [
        Line2D([], [], color=_CORRECT, marker=".", label="correct"),
        Line2D([], [], color=_INCORRECT, marker="x", markersize=4, label="incorrect"),
    ]
    title = f"Compressed against original length, one line a sample, cache budget {budget}{under}"
    finish(figure, title, handles, [*footer(shown, conditions), *cut(shown)])
    return figure


def _draw(axis: Any, samples: Sequence[Sample]) -> None:
    """All lines as one object: there may be thousands."""
    known = [sample for sample in samples if sample.correct is not None and sample.curve]
    lines = [[(0, 0), *(point[1:] for point in sample.curve)] for sample in known]
    colours = [_CORRECT if sample.correct else _INCORRECT for sample in known]
    axis.add_collection(
        LineCollection(lines, colors=colours, linewidths=0.8, alpha=0.55), autolim=True
    )
    # The end marks differ too, for readers who do not tell green from red.
    for colour, end in ((_CORRECT, "."), (_INCORRECT, "x")):
        ends = [line[-1] for line, drawn in zip(lines, colours, strict=True) if drawn == colour]
        original, compressed = zip(*ends, strict=True) if ends else ((), ())
        axis.plot(original, compressed, end, color=colour, markersize=3.5, alpha=0.8)
    axis.autoscale_view()
