"""Draw the figures of docs/STUDY.md from what `study_readings.py` counted.

    python scripts/pages/study/study_tables.py --chosen study.json # keeps the numbers
    python scripts/pages/study/study_figures.py                    # draws docs/study/*.svg of them

Each point is a number of the tables, with its interval; nothing is computed here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

sys.path.append(str(Path(__file__).parents[1]))

import records
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.report.charts import Style
from experiments.report.figures.style import FULL, STYLE, finish, look, panels, save

ROOT = Path(__file__).parents[3]
KEPT, FOLDER = ROOT / "docs" / "study_results.json", ROOT / "docs" / "study"
LEVELS, CHOSEN = ("easy", "medium", "hard", "retold"), "chosen"
Row = Mapping[str, Any]
#: Series: methods, then controls; those that keep the prompt are hollow.
LOOKS = {
    name: Style("method", at, at) for at, name in enumerate(("quest", "infllm", "h2o", "sink"))
} | {name: Style("control", at, at) for at, name in enumerate(("oracle", "random", "window"))}
CLASSES = {
    "derived": "#9ecae1", "derived again": "#08519c", "checked": "#c7e9c0",
    "checked again": "#238b45", "mended": "#756bb1", "lost": "#fdae6b", "loop": "#d94801",
    "gave up": "#636363", "asked": "#d9d9d9", "answer": "#bdbdbd", "other": "#000000",
}  # fmt: skip


def series(rows: Sequence[Row]) -> dict[tuple[str, bool], list[Row]]:
    """Rows of a level by method and whether the prompt is kept, by budget."""
    found: dict[tuple[str, bool], list[Row]] = {}
    for row in sorted((one for one in rows if one["budget"]), key=lambda one: one["budget"]):
        if row["backend"] in LOOKS:
            found.setdefault((row["backend"], bool(row["kept"])), []).append(row)
    return found


def lines(
    document: Row, cap: str, told: Sequence[tuple[str, Callable[[Row], Row], float | None]],
    title: str, notes: Sequence[str],
) -> Any:  # fmt: skip
    """A column for each level, a panel for each number against the budget.

    Args:
        document: of `study_readings.py`.
        cap: which.
        told: of each panel: its words, what it shows of a row, full attention's value.
        title, notes: of the figure.
    """
    levels = [one for one in LEVELS if one in document["levels"]]
    figure, axes = panels([2.4] * len(told), len(levels))
    shown: set[tuple[str, bool]] = set()
    for column, level in enumerate(levels):
        rows = document["levels"][level]["at"][cap]["rows"]
        ticks = sorted({row["budget"] for row in rows if row["budget"]})[::2]
        for at, (words, value, whole) in enumerate(told):
            axis = axes[at][column]
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_locator(FixedLocator(ticks))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axis.tick_params(axis="x", labelrotation=60)
            axis.set_title(level if not at else "")
            axis.set_ylabel(words if not column else "")
            if whole is not None:
                axis.axhline(whole, color=FULL, linestyle="--", linewidth=1)
            for key, some in series(rows).items():
                points = [(row["budget"], value(row)) for row in some]
                points = [(x, one) for x, one in points if one["estimate"] is not None]
                if points:
                    shown.add(key)
                    _draw(axis, key, points)
        axes[-1][column].set_xlabel("budget, tokens")
    finish(figure, title, [_handle(key) for key in sorted(shown)], notes)
    return figure


def _draw(axis: Any, key: tuple[str, bool], points: Sequence[tuple[int, Row]]) -> None:
    colour, mark = look(LOOKS[key[0]])
    told: dict[str, Any] = {"color": colour, "marker": mark}
    if key[1]:
        told |= {"markerfacecolor": "white", "linestyle": ":"}
    xs, ys = [x for x, _ in points], [one["estimate"] for _, one in points]
    axis.plot(xs, ys, **told)
    for x, one in points:
        if one["low"] is not None and one["high"] is not None:
            axis.plot([x, x], [one["low"], one["high"]], color=colour, linewidth=0.8)


def _handle(key: tuple[str, bool]) -> Line2D:
    colour, mark = look(LOOKS[key[0]])
    told: dict[str, Any] = {"color": colour, "marker": mark}
    if key[1]:
        told |= {"markerfacecolor": "white", "linestyle": ":"}
    return Line2D([], [], label=key[0] + (" with the prompt" if key[1] else ""), **told)


def excess(document: Row, cap: str) -> Any:
    """Tokens a problem that each method's texts have more or less, stacked by class."""
    levels = [one for one in LEVELS if one in document["levels"]]
    figure, axes = panels([3.4], len(levels))
    for column, level in enumerate(levels):
        axis = axes[0][column]
        rows = document["levels"][level]["at"][cap]["rows"]
        wanted = ("quest", "infllm", "h2o", "sink")
        mine = [row for name in wanted for row in rows if row["backend"] == name]
        mine = [row for row in mine if not row["kept"]]
        names = [f"{row['backend']} {row['budget']}" for row in mine]
        control = [row for row in rows if row["role"] == "null"]
        mine, names = mine + control, names + ["noise control" for _ in control]
        for sign in (1, -1):
            below = [0.0] * len(mine)
            for name, colour in CLASSES.items():
                told = [row["against_full"]["excess"]["by_class"][name] / row["n"] for row in mine]
                told = [max(0.0, sign * one) * sign for one in told]
                axis.bar(names, told, bottom=below, color=colour, width=0.8)
                below = [a + b for a, b in zip(below, told, strict=True)]
        axis.axhline(0, color=FULL, linewidth=0.8)
        axis.tick_params(axis="x", labelrotation=90)
        axis.set_title(level)
        axis.set_ylabel("tokens a problem, less full attention's" if not column else "")
    handles = [
        Line2D([], [], color=colour, marker="s", linestyle="none", label=name)
        for name, colour in CLASSES.items()
    ]
    title = f"What the tokens beyond full attention's are, at a cap of {cap}"
    finish(figure, title, handles, ["all problems, solved or not; what is fewer lies below zero"])
    return figure


def figures(found: Mapping[str, Row]) -> Iterator[tuple[str, Any]]:
    """Each figure and its file's name."""
    document = found[CHOSEN]
    cap = str(max(document["caps"]))
    bars = "bars are 95% intervals; hollow: the prompt is kept"

    def of(name: str) -> Callable[[Row], Row]:
        return lambda row: row["against_full"][name]

    yield "lengths", lines(
        document, cap,
        [("solved", lambda row: row["accuracy"], None),
         ("tokens, both solve", of("ratio_solved"), 1.0),
         ("tokens until right, more", of("until_right"), 0.0),
         ("tokens after it, more", of("after_right"), 0.0)],
        f"Answers and lengths against budget, beside full attention, at a cap of {cap}",
        [bars, "tokens until the goal's value is first right, and after it, where both state it"],
    )  # fmt: skip
    costs = lines(
        document, cap,
        [(f"{told} / solved", lambda row, cost=cost: row["against_full"]["per_solved_ratio"][cost],
          1.0) for cost, told in (("keys", "keys"), ("byte_steps", "byte x steps"),
                                  ("seconds", "seconds"))],
        f"Cost of a solved problem over full attention's, at a cap of {cap}",
        [bars, "seconds are those of this run on two CPU cores"],
    )  # fmt: skip
    for axis in costs.axes:
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axis.yaxis.set_minor_locator(NullLocator())
    yield "costs", costs
    yield "excess", excess(document, cap)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=FOLDER, help="folder, docs/study by default")
    args = parser.parse_args(argv)
    if not KEPT.exists():
        parser.error(f"{KEPT} is not there: study_tables.py --chosen makes it")
    args.into.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, figure in figures(records.read(KEPT)):
            png, svg = save(figure, args.into / name)
            png.unlink()
            print(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
