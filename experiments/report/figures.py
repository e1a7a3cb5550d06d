"""Figures as PNG and SVG, drawn from a report's charts."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from experiments.report.board import Board, BoardRow, subject
from experiments.report.charts import NONE_SOLVED, Chart, ChartSet, Panel, Series, Style
from experiments.report.names import series, short_names
from experiments.report.row import ReportRow, dataset_order
from experiments.store.files.filesystem import whole_file
from experiments.store.samples.sample import Key, Sample

if TYPE_CHECKING:
    from experiments.report.report import Report

# Okabe and Ito's colours, which readers who see fewer colours can distinguish; marks differ too.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_MARKS = ("o", "^", "s", "D", "v", "<", ">")
_CONTROL_COLOURS = ("#8c510a", "#6a3d9a", "#7f7f7f")
_CONTROL_MARKS = ("*", "P", "X", "p", "d")
_FULL = "#444444"
_CORRECT, _INCORRECT = "#1a9850", "#d73027"
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "svg.hashsalt": "lil",  # the same figure gives the same file
    "svg.fonttype": "none",
}
_WIDE, _HIGH, _LEAST = 3.0, 2.6, 4.6  # inches of a panel, and of a figure
_FOOT, _HEAD = 7, 11  # points
_LETTER = 0.52  # of a letter's height, the mean width of a letter


def draw(report: Report, sets: Sequence[ChartSet], folder: Path) -> list[Path]:
    """Write the figures of every set of charts; their paths, PNG before SVG.

    1: accuracy and length against budget; 2: compression ratio; 3: compressed against original
    length; 4: keys read per solved problem; 5: tokens saved against change of accuracy; 6:
    needles found by depth. A comparison has one: keys saved against change of accuracy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = report.config
    full = f"of full attention {config.max_new_tokens:,} tokens"
    caps = f"cap of sparse attention {config.cap}, {full}"
    conditions = [f"seed {config.seed}", config.arithmetic, caps]
    paths: list[Path] = []
    for charts in sets:
        suffix = f"-{_file_name(charts.model)}" if len({c.model for c in sets}) > 1 else ""
        suffix += "" if charts.penalty == "none" else f"-{_file_name(charts.penalty)}"
        under = "" if charts.penalty == "none" else f", penalty {charts.penalty}"
        notes = [*_footer(charts.rows), *conditions]
        with matplotlib.rc_context(_STYLE):
            for name, keys, what, more in _FIGURES if report.against_random is None else ():
                shown = [charts.chart(key) for key in keys]
                title = f"{what} against cache budget, with 95% intervals{under}"
                figure = _figure(shown, title, [*notes, *more])
                paths += _save(figure, folder / f"{name}{suffix}")
            if report.against_random is None:
                figure = _curves(_plain_samples(report, charts), charts, under, notes)
                paths += _save(figure, folder / f"figure3-curves{suffix}")
            for chart in charts.charts:
                if chart.key in _SCATTERS:
                    name, who = _SCATTERS[chart.key]
                    title = f"What {who} save against what they cost in answers{under}"
                    figure = _figure([chart], title, [*notes, chart.note])
                    paths += _save(figure, folder / f"{name}{suffix}")
                elif chart.key == "depths":
                    figure = _figure([chart], chart.title + under, [*notes, chart.note])
                    paths += _save(figure, folder / f"figure6-depths{suffix}")
    return paths


_KIND = "longer texts of the same kind compress better: a low ratio alone shows no repetition"
_NO_BAR = "no bar: fewer than six problems are solved, or differ"
_FIGURES: tuple[tuple[str, tuple[str, ...], str, tuple[str, ...]], ...] = (
    ("figure1-accuracy-length", ("accuracy", "length"), "Accuracy and output length", ()),
    ("figure2-compression", ("compression",), "Compression ratio of the output", (_KIND,)),
    ("figure4-cost", ("cost",), "Keys read per solved problem", (_NO_BAR,)),
)
#: File and subject of a chart of two measures.
_SCATTERS = {
    "detectors": ("figure5-detectors", "detectors"),
    "comparison": ("comparison", "methods"),
}


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")


# ---------------------------------------------------------------- charts


def _figure(charts: Sequence[Chart], title: str, notes: Sequence[str]) -> Figure:
    """The charts below each other, one column a panel."""
    figure, axes = _panels(len(charts), len(charts[0].panels), share_x=True, share_y=False)
    for down, chart in enumerate(charts):
        for across, panel in enumerate(chart.panels):
            axis = axes[down][across]
            if chart.key in _SCATTERS:
                _draw_scatter(axis, panel)
            else:
                _draw_budgets(axis, chart, panel)
            if down == 0:
                axis.set_title(textwrap.fill(panel.title, 26))
            if down == len(charts) - 1:
                axis.set_xlabel(chart.x.label)
        axes[down][0].set_ylabel(chart.y.label)
    _finish(figure, title, _handles(charts), notes)
    return figure


def _handles(charts: Sequence[Chart]) -> list[Line2D]:
    """The legend: every line, full attention, nulls, crosses and the front."""
    panels = [panel for chart in charts for panel in chart.panels]
    is_scatter = charts[0].key in _SCATTERS
    handles = []
    for name, style in {line.name: line.style for p in panels for line in p.lines}.items():
        colour, mark = _look(style)
        rule = "none" if is_scatter else "-"
        handles.append(Line2D([], [], color=colour, marker=mark, linestyle=rule, label=name))
    roles = {level.style.role for panel in panels for level in panel.levels}
    if "full" in roles:
        handles.append(Line2D([], [], color=_FULL, linestyle="--", label="full attention"))
    if "null" in roles:
        label = "null: full attention against itself"
        handles.append(Line2D([], [], color=_FULL, linestyle=":", label=label))
    if any(point.missing == NONE_SOLVED for chart in charts for point in chart.points):
        label = "none solved: no cost"
        handles.append(Line2D([], [], color=_FULL, marker="x", linestyle="none", label=label))
    return handles


def _draw_budgets(axis: Any, chart: Chart, panel: Panel) -> None:
    if budgets := chart.x.ticks:
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.xaxis.set_minor_locator(NullLocator())
        margin = max(1.35, (budgets[-1] / budgets[0]) ** 0.12)
        axis.set_xlim(budgets[0] / margin, budgets[-1] * margin)
    else:
        axis.set_xlim(chart.x.low, chart.x.high)
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    for level in panel.levels:
        (value,) = level.points
        is_full = level.style.role == "full"
        axis.axhline(value.y, color=_FULL, linestyle="--" if is_full else ":", linewidth=1.2)
        if is_full and value.low is not None and value.high is not None:
            axis.axhspan(value.low, value.high, color=_FULL, alpha=0.09, linewidth=0, zorder=0)
    for at, line in enumerate(panel.lines):
        # Each line is a little to the side, so that bars do not hide each other.
        aside = at - (len(panel.lines) - 1) / 2
        _draw_line(axis, line, *((2 ** (0.07 * aside), 0.0) if budgets else (1.0, 0.012 * aside)))
    if chart.y.is_log:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif chart.y.unit == "percent":
        axis.set_ylim(-0.05, 1.05)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axis.margins(y=0.12)
        axis.set_ylim(bottom=chart.y.low)
    if not panel.lines or all(point.y is None for line in panel.lines for point in line.points):
        text = "\n".join(textwrap.fill(reason, 30) for reason in panel.absent)
        axis.text(0.5, 0.6, text, transform=axis.transAxes, ha="center", fontsize=8)


def _draw_line(axis: Any, line: Series, times: float, plus: float) -> None:
    colour, mark = _look(line.style)
    places = [(point.x or 0.0) * times + plus for point in line.points]
    # Where a value is not known the line has a gap.
    values = [float("nan") if point.y is None else point.y for point in line.points]
    axis.plot(places, values, color=colour, marker=mark, zorder=3)
    for x, point in zip(places, line.points, strict=True):
        if point.low is not None and point.high is not None:
            axis.vlines(x, point.low, point.high, color=colour, linewidth=1.0, alpha=0.65, zorder=2)
        if point.missing == NONE_SOLVED:
            upper = axis.get_xaxis_transform()
            axis.plot([x], [0.98], "x", color=colour, transform=upper, clip_on=False)


def _draw_scatter(axis: Any, panel: Panel) -> None:
    axis.axhline(0, color=_FULL, linewidth=0.8, zorder=1)
    axis.axvline(0, color=_FULL, linewidth=0.8, zorder=1)
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    for line in panel.lines:
        colour, mark = _look(line.style)
        x, y = [point.x for point in line.points], [point.y for point in line.points]
        axis.plot(x, y, mark, color=colour, markersize=3, alpha=0.3, zorder=2)
        if total := line.total:
            axis.plot([total.x], [total.y], mark, color=colour, markersize=6.5, zorder=4)
            if total.left is not None and total.right is not None:
                axis.hlines(total.y, total.left, total.right, color=colour, linewidth=1.1)
            if total.low is not None and total.high is not None:
                axis.vlines(total.x, total.low, total.high, color=colour, linewidth=1.1)
    axis.margins(0.1)


# ---------------------------------------------------------------- board


def draw_board(board: Board, rate: float, stem: Path) -> list[Path]:
    """Write the board as one figure, a panel a group and a line a detector; PNG before SVG."""
    heights = [len(rows) + 2.0 for rows in board.values()]  # with a title and an axis
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 0.3 * sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)
        for (axis,), (group, rows) in zip(panels, board.items(), strict=True):
            axis.set_title(subject(group, board))
            axis.set_yticks(range(len(rows)), [row.label for row in rows])
            axis.set_ylim(len(rows) - 0.5, -0.5)
            axis.axvline(0, color=_FULL, linewidth=0.8, zorder=1)
            for at, row in enumerate(rows):
                _draw_row(axis, at, row)
        axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_xlabel("spared")
        tokens = Line2D([], [], color=_COLOURS[0], marker="o", label="tokens")
        keys = Line2D([], [], color=_COLOURS[5], marker="|", linestyle="none", label="keys")
        proved = f"proved on half of the problems to lose less than {100 * rate:.3g}% of answers"
        note = f"each at the most eager setting {proved}, on the other half; bars: 95% intervals"
        _finish(figure, "What is spared at the same loss", [tokens, keys], [note])
        return _save(figure, stem)


def _draw_row(axis: Any, at: int, row: BoardRow) -> None:
    words = "no setting"
    if row.effect is not None:
        tokens, change = row.effect.tokens, row.effect.change
        words = f"{change.lost} of {row.effect.solved} lost, {change.gained} gained"
        colour = _FULL if row.problems is None else _COLOURS[0]
        axis.plot([tokens.estimate], [at], "o", color=colour, zorder=3)
        axis.plot([row.keys.estimate], [at], "|", color=_COLOURS[5], markersize=9)
        if tokens.low is not None and tokens.high is not None:
            axis.hlines(at, tokens.low, tokens.high, color=colour)
    axis.text(1.02, at, words, transform=axis.get_yaxis_transform(), va="center", fontsize=_FOOT)


# ---------------------------------------------------------------- curves


def _plain_samples(report: Report, charts: ChartSet) -> list[Sample]:
    """The samples of a set of charts without detector, under short names."""
    models = short_names(row.model for row in report.rows)
    datasets = short_names(row.dataset for row in report.rows)
    samples = [
        replace(sample, model=models[sample.model], dataset=datasets[sample.dataset])
        for sample in report.samples
        if (models[sample.model], sample.penalty) == (charts.model, charts.penalty)
        and sample.detector == "none"
    ]
    return sorted(samples, key=lambda sample: sample.pair)


def _curves(samples: list[Sample], charts: ChartSet, under: str, notes: Sequence[str]) -> Figure:
    """Green correct, red incorrect; one row a backend, at the middle budget measured."""
    budgets = charts.charts[0].x.ticks
    budget = budgets[(len(budgets) - 1) // 2]
    rows = [row for row in charts.rows if (row.detector, row.penalty) == ("none", charts.penalty)]
    datasets = sorted({row.dataset for row in rows}, key=dataset_order)
    by_label = {
        label: row
        for dataset in datasets
        for label, line in series([row for row in rows if row.dataset == dataset]).items()
        for row in line
        if row.budget in (None, budget)
    }
    complete = {row.key for row in rows if row.is_complete}
    by_key: dict[Key, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.key in complete and sample.correct is not None and sample.curve:
            by_key[sample.key].append(sample)
    figure, axes = _panels(len(by_label), len(datasets), share_x=True, share_y=True)
    for down, (label, row) in enumerate(by_label.items()):
        for across, dataset in enumerate(datasets):
            _draw_curves(axes[down][across], by_key[row.key[0], dataset, *row.key[2:]])
        axes[down][0].set_ylabel(f"{textwrap.fill(label, 20)}\ncompressed, bytes")
    for across, dataset in enumerate(datasets):
        axes[0][across].set_title(dataset)
        axes[-1][across].set_xlabel("original, bytes")
        # Last, and once a column: a limit set earlier would freeze the scale of all below.
        axes[-1][across].set_xlim(left=0)
        axes[-1][across].set_ylim(bottom=0)
    handles = [
        Line2D([], [], color=_CORRECT, marker=".", label="correct"),
        Line2D([], [], color=_INCORRECT, marker="x", markersize=4, label="incorrect"),
    ]
    title = f"Compressed against original length, one line a sample, cache budget {budget}{under}"
    _finish(figure, title, handles, notes)
    return figure


def _draw_curves(axis: Any, samples: Sequence[Sample]) -> None:
    """All lines as one object: there may be thousands."""
    for is_correct, colour, mark in ((True, _CORRECT, "."), (False, _INCORRECT, "x")):
        lines = [
            [(0, 0), *(point[1:] for point in sample.curve)]
            for sample in samples
            if sample.correct is is_correct
        ]
        axis.add_collection(LineCollection(lines, colors=colour, linewidths=0.8, alpha=0.55))
        # The end marks differ too, for readers who do not tell green from red.
        x, y = ([line[-1][side] for line in lines] for side in (0, 1))
        axis.plot(x, y, mark, color=colour, markersize=3.5, alpha=0.8)


# ---------------------------------------------------------------- layout, notes and files


def _look(style: Style) -> tuple[str, str]:
    """Colour and mark; a control has those of its own, and so has full attention."""
    if style.role == "full":
        return _FULL, "."
    is_control = style.role == "control"
    colours, marks = (_CONTROL_COLOURS, _CONTROL_MARKS) if is_control else (_COLOURS, _MARKS)
    return colours[style.number % len(colours)], marks[style.number % len(marks)]


def _panels(down: int, across: int, share_x: bool, share_y: bool) -> tuple[Figure, Any]:
    size = max(_LEAST, _WIDE * across), _HIGH * down
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    shared: Any = {"sharex": "col" if share_x else "none", "sharey": "col" if share_y else "none"}
    return figure, figure.subplots(down, across, squeeze=False, **shared)


def _finish(figure: Figure, title: str, handles: Sequence[Line2D], notes: Sequence[str]) -> None:
    """Title above the panels, legend and footer below, in room of their own."""
    wide, high = figure.get_size_inches()
    points = (wide - 0.3) * 72
    head = textwrap.fill(title, int(points / (_HEAD * _LETTER)))
    foot = textwrap.fill("; ".join(notes), int(points / (_FOOT * _LETTER)))
    longest = max(len(str(handle.get_label())) + 6 for handle in handles)
    columns = max(1, min(8, int(points / (9 * _LETTER) / longest)))
    below = (foot.count("\n") + 1) * _FOOT * 1.4 + -(-len(handles) // columns) * 14
    figure.set_size_inches(wide, high + (below + (head.count("\n") + 1) * _HEAD * 1.4) / 72)
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=columns,
        title=foot,
        title_fontproperties={"size": _FOOT},
        alignment="left",
    )
    figure.suptitle(head, fontsize=_HEAD)
    figure.align_ylabels()


def _save(figure: Figure, stem: Path) -> list[Path]:
    """PNG and SVG, each whole or not at all."""
    # Laid out once. `Figure.savefig` does it for each file, and draws once more to see how large.
    layout: Any = figure.get_layout_engine()
    layout.execute(figure)
    figure.set_layout_engine("none")
    for axis in figure.axes:  # the solver's last digits differ from run to run
        left, bottom, width, height = axis.get_position().bounds
        axis.set_position((round(left, 6), round(bottom, 6), round(width, 6), round(height, 6)))
    png, svg = (stem.with_name(stem.name + suffix) for suffix in (".png", ".svg"))
    figure.set_dpi(160)
    with whole_file(png, through_links=False) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    with whole_file(svg, through_links=False) as temporary:
        FigureCanvasSVG(figure).print_svg(str(temporary), metadata={"Date": None})
    return [png, svg]


def _footer(rows: Sequence[ReportRow]) -> list[str]:
    """Model, samples, configurations that are not complete, outputs that the cap cut."""
    plain = [row for row in rows if row.detector == "none"]
    samples = sorted({row.samples for row in plain})
    n = f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"
    notes = [f"model {rows[0].model}", f"n = {n} samples a configuration"]
    if left_out := sum(not row.is_complete for row in plain):
        notes.append(f"without {left_out} that are not complete")
    if any(row.capped for row in plain):
        notes.append("some outputs were cut at the cap: their lengths are lower bounds")
    return notes
