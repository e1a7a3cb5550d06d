"""What all figures look like: colours, panels, legend and footer, and how they become files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report.row import ReportRow, dataset_order, series
from experiments.store.files.disk import whole_file

# Okabe and Ito's colours: told apart by readers who see fewer of them; marks differ as well.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "*", "h", "p")
FULL = "#444444"
STYLE: dict[str, Any] = {
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

_WIDE = 3.0  # inches of a panel
_LEAST = 4.6  # inches of a figure
_FOOT, _HEAD = 7, 11  # points
_DPI = 160  # of the PNG
_LETTER = 0.52  # of a letter's height, the mean width of one


def styles(rows: Sequence[ReportRow]) -> dict[str, tuple[str, str]]:
    """Colour and mark of each backend by its label, the same in every panel."""
    sparse = [row for row in rows if row.budget is not None and row.detector == "none"]
    datasets = sorted({row.dataset for row in sparse}, key=dataset_order)
    labels = [x for d in datasets for x in series([row for row in sparse if row.dataset == d])]
    return {
        label: (COLOURS[at % len(COLOURS)], MARKS[at % len(MARKS)])
        for at, label in enumerate(dict.fromkeys(labels))
    }


def panels(
    heights: Sequence[float], across: int, share_x: bool = True, share_y: bool = False
) -> tuple[Figure, Any]:
    """`across` panels side by side and one below the other; a column's axes shared or not."""
    figure = Figure(figsize=(max(_LEAST, _WIDE * across), sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(
        len(heights),
        across,
        squeeze=False,
        sharex="col" if share_x else "none",
        sharey="col" if share_y else "none",
        gridspec_kw={"height_ratios": list(heights)},
    )
    return figure, axes


def panel_title(dataset: str, words: str) -> str:
    """On one line where it is short, so that titles of neighbours do not meet."""
    return f"{dataset}{' ' if len(dataset) + len(words) <= 26 else chr(10)}({words})"


def finish(figure: Figure, title: str, handles: Sequence[Line2D], notes: Sequence[str]) -> None:
    """Title above the panels, legend and footer below, in room of their own."""
    canvas: Any = figure.canvas
    renderer = canvas.get_renderer()
    wide, high = figure.get_size_inches()
    head = textwrap.fill(title, int((wide - 0.3) * 72 / (_HEAD * _LETTER)))
    foot = textwrap.fill("; ".join(notes), int((wide - 0.3) * 72 / (_FOOT * _LETTER)))
    below = (foot.count("\n") + 1) * _FOOT * 1.3 / 72 + 0.08 if foot else 0.0
    legend: Any = None
    for columns in range(max(1, min(len(handles), 8)), 0, -1):
        if legend is not None:
            legend.remove()
        legend = figure.legend(
            handles=list(handles),
            loc="lower center",
            ncols=columns,
            columnspacing=1.6,
            handletextpad=0.6,
            borderaxespad=0.3,
        )
        box = legend.get_window_extent(renderer)
        if box.width <= (wide - 0.1) * figure.dpi:
            break
    tall = box.height / figure.dpi + 0.05
    above = (head.count("\n") + 1) * _HEAD * 1.35 / 72 + 0.05
    whole = high + below + tall + above
    figure.set_size_inches(wide, whole)
    # Measured for the new height: the legend stands on the footer, the panels on the legend.
    legend.set_bbox_to_anchor((0.5, below / whole), transform=figure.transFigure)
    figure.text(0.1 / wide, 0.05 / whole, foot, fontsize=_FOOT, color="#555555", va="bottom")
    figure.suptitle(head, fontsize=_HEAD)
    bottom = (below + tall) / whole
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0, bottom, 1, 1 - bottom))
    figure.align_ylabels()


def save(figure: Figure, stem: Path) -> list[Path]:
    """PNG and SVG, each whole or not at all."""
    # Laid out once. `Figure.savefig` does it for each file, and draws once more to see how large.
    layout: Any = figure.get_layout_engine()
    layout.execute(figure)
    figure.set_layout_engine("none")
    for axis in figure.axes:  # the solver's last digits differ from run to run
        left, bottom, width, height = axis.get_position().bounds
        axis.set_position((round(left, 6), round(bottom, 6), round(width, 6), round(height, 6)))
    png, svg = (stem.with_name(stem.name + suffix) for suffix in (".png", ".svg"))
    figure.set_dpi(_DPI)
    with whole_file(png, through_links=False) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    with whole_file(svg, through_links=False) as temporary:
        FigureCanvasSVG(figure).print_svg(str(temporary), metadata={"Date": None})
    return [png, svg]
