"""The paper's Figures 1, 2 and 3 as PNG and SVG, drawn from rows and samples alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from experiments.report.row import ReportRow, by_penalty, dataset_order, series, shown_detector
from experiments.store.outputs import whole_file
from experiments.store.sample import Sample

# Okabe and Ito's colours: told apart by readers who see fewer of them; marks differ as well.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_MARKS = ("o", "^", "s", "D", "v", "P")
_FULL = "#444444"
_CORRECT, _INCORRECT = "#1a9850", "#d73027"
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "svg.hashsalt": "lil",  # the same figure gives the same file
    "svg.fonttype": "none",
}

Point = tuple[float | None, float | None, float | None]  # value, low, high


def figures(samples: Sequence[Sample], rows: Sequence[ReportRow], out_dir: Path) -> list[Path]:
    """Write Figures 1, 2 and 3 for every model and penalty; their paths, PNG before SVG.

    Each file appears whole or not at all. Without a sparse configuration there is nothing to draw.
    Full attention is the one without penalty in all of them.

    - Figure 1: accuracy and output length against budget, one column a data set. Solid without,
      dotted and hollow with the detector; full attention dashed; 95% intervals as bars and band.
    - Figure 2: compression ratio of whole outputs against budget.
    - Figure 3: compressed against original length, one line a sample, green correct, red
      incorrect; one row a backend, at the middle budget measured (the paper: sink and Quest, 1024).
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    models = sorted({row.model for row in rows if row.budget is not None})
    paths = []
    for model in models:
        of_model = [row for row in rows if row.model == model]
        for penalty in by_penalty([row for row in of_model if row.budget is not None]):
            suffix = f"-{_file_name(model)}" if len(models) > 1 else ""
            suffix += "" if penalty == "none" else f"-{_file_name(penalty)}"
            shown = [row for row in of_model if row.penalty == penalty or row.is_baseline]
            plain = [
                sample
                for sample in samples
                if (sample.model, sample.penalty, sample.detector) == (model, penalty, "none")
            ]
            plain.sort(key=lambda sample: sample.pair)
            with matplotlib.rc_context(_STYLE):
                for name, figure in (
                    ("figure1-accuracy-length", _figure1(shown, penalty)),
                    ("figure2-compression", _figure2(shown, penalty)),
                    ("figure3-curves", _figure3(plain, shown, penalty)),
                ):
                    paths += _save(figure, out_dir / f"{name}{suffix}")
    return paths


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")


def _under(penalty: str) -> str:
    return "" if penalty == "none" else f", penalty {penalty}"


def _figure1(rows: list[ReportRow], penalty: str) -> Figure:
    return _against_budget(
        rows,
        [("accuracy", _accuracy, (-0.03, 1.03)), ("mean output length, tokens", _tokens, None)],
        f"Accuracy and output length against cache budget, with 95% intervals{_under(penalty)}",
    )


def _figure2(rows: list[ReportRow], penalty: str) -> Figure:
    return _against_budget(
        rows,
        [("compressed / original bytes", lambda row: (row.compression_ratio, None, None), None)],
        f"Compression ratio of the output against cache budget{_under(penalty)}",
    )


def _accuracy(row: ReportRow) -> Point:
    return row.accuracy, row.accuracy_low, row.accuracy_high


def _tokens(row: ReportRow) -> Point:
    return row.mean_tokens, row.mean_tokens_low, row.mean_tokens_high


def _against_budget(
    rows: list[ReportRow],
    measures: list[tuple[str, Callable[[ReportRow], Point], tuple[float, float] | None]],
    title: str,
) -> Figure:
    datasets = sorted({row.dataset for row in rows}, key=dataset_order)
    figure, axes = _grid(len(measures), len(datasets), height=2.35, share_y=False)
    budgets, styles = _budgets(rows), _styles(rows)
    for column, dataset in enumerate(datasets):
        part = [row for row in rows if row.dataset == dataset]
        for at, (name, measure, limits) in enumerate(measures):
            axis = axes[at][column]
            _draw_budgets(axis, part, budgets, measure, styles)
            if limits:
                axis.set_ylim(*limits)
                axis.yaxis.set_major_formatter(PercentFormatter(1.0))
            else:
                axis.set_ylim(bottom=0)
            if column == 0:
                axis.set_ylabel(name)
        axes[0][column].set_title(f"{dataset} ({max(row.problems for row in part)} problems)")
        axes[-1][column].set_xlabel("cache budget, tokens")
    handles = [
        Line2D([], [], color=colour, marker=mark, label=label)
        for label, (colour, mark) in styles.items()
    ]
    handles.append(Line2D([], [], color=_FULL, linestyle="--", label="full attention"))
    if watched := shown_detector(rows):
        handles.append(
            Line2D(
                [],
                [],
                color="#888888",
                linestyle=":",
                marker="o",
                markerfacecolor="white",
                label=f"with {watched[0]}",
            )
        )
    _finish(figure, title, handles)
    return figure


def _draw_budgets(
    axis: Any,
    rows: list[ReportRow],
    budgets: list[int],
    measure: Callable[[ReportRow], Point],
    styles: dict[str, tuple[str, str]],
) -> None:
    plain = [row for row in rows if row.detector == "none"]
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(budgets))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([str(budget) for budget in budgets])
    axis.set_xlim(budgets[0] / 1.35, budgets[-1] * 1.35)
    for row in plain:
        if row.is_baseline:
            value, low, high = measure(row)
            if value is not None:
                axis.axhline(value, color=_FULL, linestyle="--", linewidth=1.2, zorder=1)
            if low is not None and high is not None:
                axis.axhspan(low, high, color=_FULL, alpha=0.09, linewidth=0, zorder=0)
    lines = series([row for row in plain if row.budget is not None])
    watched = shown_detector(rows)
    under = series([r for r in rows if r.watched == watched and r.budget is not None])
    for at, (label, line) in enumerate(lines.items()):
        # Each backend a little aside of the tick, so that bars do not hide each other.
        aside = 2 ** (0.07 * (at - (len(lines) - 1) / 2))
        colour, mark = styles[label]
        _draw_line(axis, line, measure, aside, {"color": colour, "marker": mark, "zorder": 3})
        if any(_differs(row, line, measure) for row in under.get(label, [])):
            hollow = {"markerfacecolor": "white", "linestyle": ":", "linewidth": 1.2, "zorder": 2}
            style = {"color": colour, "marker": mark, **hollow}
            _draw_line(axis, under[label], measure, aside, style, bars=False)


def _differs(row: ReportRow, line: list[ReportRow], measure: Callable[[ReportRow], Point]) -> bool:
    """Whether a detector moved this value: where it moved none, its line would hide the other."""
    return all(measure(o)[0] != measure(row)[0] for o in line if o.budget == row.budget)


def _draw_line(
    axis: Any,
    line: list[ReportRow],
    measure: Callable[[ReportRow], Point],
    aside: float,
    style: dict[str, Any],
    bars: bool = True,
) -> None:
    points = [(row.budget * aside, *measure(row)) for row in line if row.budget is not None]
    known = [(x, value) for x, value, _, _ in points if value is not None]
    axis.plot([x for x, _ in known], [value for _, value in known], **style)
    for x, _, low, high in points if bars else []:
        if low is not None and high is not None:
            axis.vlines(x, low, high, color=style["color"], linewidth=1.0, alpha=0.65, zorder=2)


def _figure3(samples: list[Sample], rows: list[ReportRow], penalty: str) -> Figure:
    budgets = _budgets(rows)
    budget = budgets[(len(budgets) - 1) // 2]
    shown = [row for row in rows if (row.detector, row.penalty) == ("none", penalty)]
    datasets = sorted({row.dataset for row in shown}, key=dataset_order)
    chosen = {
        label: row
        for dataset in datasets
        for label, line in series([row for row in shown if row.dataset == dataset]).items()
        for row in line
        if row.budget in (None, budget)
    }
    figure, axes = _grid(len(chosen), len(datasets), height=1.75, share_y=True)
    for down, (label, row) in enumerate(chosen.items()):
        for across, dataset in enumerate(datasets):
            axis = axes[down][across]
            for sample in samples:
                if (sample.backend, sample.budget, sample.dataset) == (
                    row.backend, row.budget, dataset,
                ) and dict(sample.backend_params) == row.backend_params:  # fmt: skip
                    _draw_curve(axis, sample)
            if down == 0:
                axis.set_title(dataset)
            if down == len(chosen) - 1:
                axis.set_xlabel("original, bytes")
            if across == 0:
                axis.set_ylabel(f"{label}\ncompressed, bytes")
    for axis in axes[-1]:
        # Last, and once per column: a limit set earlier would freeze the scale of all below.
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    handles = [
        Line2D([], [], color=_CORRECT, marker=".", label="correct"),
        Line2D([], [], color=_INCORRECT, marker="x", markersize=4, label="incorrect"),
    ]
    _finish(
        figure,
        f"Compressed against original length, one line a sample, cache budget {budget}"
        f"{_under(penalty)}",
        handles,
    )
    return figure


def _draw_curve(axis: Any, sample: Sample) -> None:
    if sample.correct is None or not sample.curve:
        return
    original = [0, *(point[1] for point in sample.curve)]
    compressed = [0, *(point[2] for point in sample.curve)]
    colour = _CORRECT if sample.correct else _INCORRECT
    axis.plot(original, compressed, color=colour, linewidth=0.8, alpha=0.55)
    # The end marks differ too, for readers who do not tell green from red.
    end = "." if sample.correct else "x"
    axis.plot(original[-1], compressed[-1], end, color=colour, markersize=3.5, alpha=0.8)


def _budgets(rows: Sequence[ReportRow]) -> list[int]:
    return sorted({row.budget for row in rows if row.budget is not None})


def _styles(rows: list[ReportRow]) -> dict[str, tuple[str, str]]:
    """Colour and mark by label, the same in every panel."""
    sparse = [row for row in rows if row.budget is not None and row.detector == "none"]
    datasets = sorted({row.dataset for row in sparse}, key=dataset_order)
    labels = [x for d in datasets for x in series([row for row in sparse if row.dataset == d])]
    return {
        label: (_COLOURS[at % len(_COLOURS)], _MARKS[at % len(_MARKS)])
        for at, label in enumerate(dict.fromkeys(labels))
    }


def _grid(down: int, across: int, height: float, share_y: bool) -> tuple[Figure, Any]:
    """Panels below each other share what they can, so that they can be compared by eye."""
    figure = Figure(figsize=(max(4.2, 3.0 * across), height * down + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(
        down, across, squeeze=False, sharex="col", sharey="col" if share_y else "none"
    )
    return figure, axes


def _finish(figure: Figure, title: str, handles: list[Line2D]) -> None:
    figure.suptitle(title, fontsize=11)
    figure.align_ylabels()
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6))


def _save(figure: Figure, stem: Path) -> list[Path]:
    """Write both formats of a figure, each whole."""
    paths = []
    for suffix in (".png", ".svg"):
        target = stem.with_name(stem.name + suffix)
        metadata = {"Date": None} if suffix == ".svg" else {}
        with whole_file(target) as half:
            figure.savefig(str(half), dpi=160, format=suffix[1:], metadata=metadata)
        paths.append(target)
    return paths
