"""What all figures look like: styles, panels, legend and footer, and how they become files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.grid.config import Config
from experiments.report.charts import ChartSet, Style
from experiments.report.row import ReportRow
from experiments.store.files.filesystem import whole_file

# Okabe and Ito's colours: told apart by readers who see fewer of them; marks differ as well.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_MARKS = ("o", "^", "s", "D", "v", "<", ">")
_CONTROL = ("#8c510a", "#6a3d9a", "#7f7f7f")
_CONTROL_MARKS = ("*", "P", "X", "p", "d")
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


def look(style: Style) -> tuple[str, str]:
    """Colour and mark; a control has those of its own."""
    if style.role in ("full", "null"):
        return FULL, "h"
    colours, marks = (_CONTROL, _CONTROL_MARKS) if style.role == "control" else (_COLOURS, _MARKS)
    return colours[style.colour % len(colours)], marks[style.mark % len(marks)]


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
    wide, high = figure.get_size_inches()
    head, foot = (
        textwrap.fill(text, int((wide - 0.3) * 72 / (size * _LETTER)))
        for text, size in ((title, _HEAD), ("; ".join(notes), _FOOT))
    )
    room = (wide - 0.3) * 72 / (9 * _LETTER)  # letters of a legend's line
    columns = max(1, int(room / max(len(str(handle.get_label())) + 6 for handle in handles)))
    rows = -(-len(handles) // columns)
    below = (foot.count("\n") + 1) * _FOOT * 1.4 + rows * 14
    figure.set_size_inches(wide, high + (below + (head.count("\n") + 1) * _HEAD * 1.4) / 72)
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=min(columns, 8),
        title=foot,
        title_fontproperties={"size": _FOOT},
        alignment="left",
    )
    figure.suptitle(head, fontsize=_HEAD)
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


# ---------------------------------------------------------------- the footer


def conditions(config: Config) -> list[str]:
    """What a sweep's rows do not hold, as a reader sees it."""
    full = f"of full attention {config.max_new_tokens:,} tokens"
    caps = f"cap of sparse attention {config.cap}, {full}"
    return [f"seed {config.seed}", config.arithmetic, caps]


def footer(rows: Sequence[ReportRow], conditions: Sequence[str]) -> list[str]:
    """Model, samples, seed, type, cap; configurations left out because they are not complete."""
    models = sorted({row.model for row in rows})
    samples = sorted({row.samples for row in rows})
    n = f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"
    notes = [f"model {', '.join(models)}", f"n = {n} samples a configuration", *conditions]
    left_out = sum(not row.is_complete for row in rows if row.detector == "none")
    if left_out:
        several = "configurations that are" if left_out > 1 else "configuration that is"
        notes.append(f"without {left_out} {several} not complete")
    return notes


def other_detectors(of: ChartSet) -> list[str]:
    """Which detectors of the store a figure that shows one leaves out."""
    others = [f"{name} ({action})" for name, action in of.others]
    return [f"not shown here: {', '.join(others)} (Figure 5)"] if others else []


def cut(rows: Sequence[ReportRow], words: str = "their lengths are lower bounds") -> list[str]:
    """What it means that outputs were cut at the cap, where any was."""
    if not any(row.capped for row in rows if row.detector == "none"):
        return []
    return [f"some outputs were cut at the cap and would have gone on: {words}"]
