"""A chart is one thing drawn three times: files, the page and the terminal show the same of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from drawn_figures import drawn_figures, every_chart
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.text import Text
from synthetic_samples import guarded, sample, sparse

from experiments.report import figures, terminal
from experiments.report.charts import ChartSet
from experiments.report.page.page import chart_values
from experiments.store.samples.sample import Sample

BUDGETS = (16, 64)
CROSS = "x"  # where none is solved: no cost
HEIGHT = 9  # lines of a terminal's chart: every value of `samples` stands on one of them


@dataclass(frozen=True)
class Seen:
    """A series as a reader sees it: what it is, what it is called, and its marks by budget."""

    kind: str  # "full", "null", "method", "control"; "under a detector" behind it
    name: str
    points: tuple[tuple[int, float], ...]


def samples() -> list[Sample]:
    """Two data sets, two methods, more controls than there are colours, a null and a detector."""
    found = []
    for dataset, times in (("easy", 1), ("hard", 2)):
        for item in range(4):
            here: dict[str, Any] = {"dataset": dataset}
            full = sample(item, **here, tokens=50 * times)
            tokens = 50 + 50 * times
            again = {"backend": "full again", "role": "null", "tokens": tokens, "correct": item < 3}
            found += [full, guarded(full, None), replace(full, **again)]
            for at, (name, role) in enumerate(
                [("h2o", "method"), ("quest", "method")]
                + [(f"control{number}", "control") for number in range(4)]
            ):
                for budget in BUDGETS if role == "method" else BUDGETS[at % 2 :][:1]:
                    solved = item < (at + (budget == 64)) % 5
                    tokens = 400 if budget == 16 else 100 + 50 * at
                    plain = sparse(
                        item, **here, backend=name, role=role, budget=budget, correct=solved,
                        tokens=tokens,
                    )  # fmt: skip
                    found += [plain, guarded(plain, 200)]
    return found


@pytest.fixture(scope="module")
def every() -> tuple[ChartSet, dict[str, Figure]]:
    """All charts of these samples, and the figures that were drawn of them."""
    kept: dict[str, Figure] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", lambda figure, stem: kept.update({stem.name: figure}) or [])
        patch.setattr(Path, "mkdir", lambda *_, **__: None)
        drawn_figures(samples(), Path("nowhere"))
    (of,) = every_chart(samples())
    return of, kept


# ---------------------------------------------------------------- what each of the three shows


def in_figure(figure: Figure, down: int, across: int) -> list[Seen]:
    """The series of a panel; names by the legend, which says a colour and a mark of each."""
    (legend,) = figure.legends
    names = {
        (to_hex(line.get_color()), line.get_marker()): text.get_text()
        for line, text in zip(legend.get_lines(), legend.get_texts(), strict=True)
    }
    found = []
    for line in figure.axes[2 * down + across].lines:
        if line.get_marker() == CROSS:
            continue
        values = [float(y) for y in line.get_ydata()]
        if list(line.get_xdata()) == [0, 1]:  # from edge to edge
            kind = {"--": "full", ":": "null"}[line.get_linestyle()]
            found.append(Seen(kind, kind, tuple((at, values[0]) for at in BUDGETS)))
            continue
        colour, mark = to_hex(line.get_color()), line.get_marker()
        kind = "control" if mark in figures.style._CONTROL_MARKS else "method"
        if line.get_markerfacecolor() == "white":
            kind += " under a detector"
        places = [min(BUDGETS, key=lambda one, x=x: abs(one - x)) for x in line.get_xdata()]
        known = [(x, y) for x, y in zip(places, values, strict=True) if not math.isnan(y)]
        found.append(Seen(kind, names[colour, mark], tuple(known)))
    return found


def on_page(of: ChartSet, at: int, across: int) -> list[Seen]:
    """The series of a panel, from what the page's script is given."""
    panel = json.loads(json.dumps(chart_values(of)))[at]["panels"][across]
    found = []
    for one in [*panel["levels"], *panel["lines"]]:
        kind, name = one["style"]["role"], one["name"]
        if one["points"][0]["x"] is None:
            points = [(at, one["points"][0]["y"]) for at in BUDGETS]
            found.append(Seen(kind, kind, tuple(points)))
            continue
        if one.get("dotted"):
            kind, name = f"{kind} under a detector", name.removesuffix(" with guardian")
        known = [(p["x"], p["y"]) for p in one["points"] if p["y"] is not None]
        found.append(Seen(kind, name, tuple(known)))
    return found


def in_terminal(of: ChartSet, down: int, across: int) -> list[Seen]:
    """The series of a panel, from its marks alone."""
    lines = terminal.draw([of], width=70, height=HEIGHT).plain.split("\n\n")[across].splitlines()
    head, body = lines[0], lines[1 + down * (HEIGHT + 3) :][1 : 1 + HEIGHT]
    labels = lines[1 + down * (HEIGHT + 3) :][HEIGHT + 2]
    top = float(body[0][:5])
    times = 100 if down == 0 else 1
    centres = {budget: labels.index(str(budget)) + 1 for budget in BUDGETS}

    def at(mark: str) -> tuple[tuple[int, float], ...]:
        cells = [
            (min(BUDGETS, key=lambda one: abs(centres[one] - x)), (1 - y / (HEIGHT - 1)) * top)
            for y, line in enumerate(body)
            for x, cell in enumerate(line)
            if cell == mark
        ]
        return tuple(sorted((budget, value / times) for budget, value in cells))

    def level(kind: str, mark: str) -> Seen:
        ((_, value),) = {(0, value) for _, value in at(mark)}
        return Seen(kind, kind, tuple((budget, value) for budget in BUDGETS))

    found = [level("full", "╌"), level("null", "·")]
    hollow = []
    for kind, (filled, empty) in (
        ("method", terminal._MARKS), ("control", terminal._CONTROL_MARKS)
    ):  # fmt: skip
        for mark, other in zip(filled, empty, strict=True):
            if f" {mark} " in head:
                name = head.partition(f" {mark} ")[2].split()[0]
                found.append(Seen(kind, name, at(mark)))
                if at(other):
                    hollow.append(Seen(f"{kind} under a detector", name, at(other)))
    return [*found, *hollow]


def rounded(seen: list[Seen]) -> list[Seen]:
    return [replace(one, points=tuple((x, round(y, 9)) for x, y in one.points)) for one in seen]


def in_order(seen: list[Seen]) -> list[Seen]:
    """Those under a detector last, as only files draw each beside its own line."""
    return sorted(seen, key=lambda one: one.kind.endswith("detector"))


# ---------------------------------------------------------------- that it is the same


@pytest.mark.parametrize("across", [0, 1])
@pytest.mark.parametrize("down", [0, 1])
def test_files_page_and_terminal_show_the_same(
    every: tuple[ChartSet, dict[str, Figure]], down: int, across: int
) -> None:
    of, drawn = every
    page = rounded(on_page(of, down, across))
    assert [one.kind for one in page[:8]] == ["full", "null", *["method"] * 2, *["control"] * 4]
    assert any(one.kind == "method under a detector" for one in page) == (down == 1)
    assert in_order(rounded(in_figure(drawn["figure1-accuracy-length"], down, across))) == page
    # A mark under the detector where one without stands is drawn in no terminal.
    there = {(one.name, point) for one in page if one.kind in ("method", "control")
             for point in one.points}  # fmt: skip
    apart = [
        replace(one, points=tuple(p for p in one.points if (one.name, p) not in there))
        if one.kind.endswith("detector")
        else one
        for one in page
    ]
    assert rounded(in_terminal(of, down, across)) == [one for one in apart if one.points]


@pytest.mark.parametrize(("name", "at"), [("figure2-compression", 4), ("figure4-cost", 3)])
@pytest.mark.parametrize("across", [0, 1])
def test_files_and_page_show_the_same_ratios(
    every: tuple[ChartSet, dict[str, Figure]], name: str, at: int, across: int
) -> None:
    of, drawn = every
    page = on_page(of, at, across)
    assert in_order(rounded(in_figure(drawn[name], 0, across))) == rounded(page)
    crosses = [one for one in drawn[name].axes[across].lines if one.get_marker() == CROSS]
    unknown = 8 - sum(len(one.points) for one in page if one.kind in ("method", "control"))
    assert len(crosses) == unknown
    assert bool(unknown) == (name == "figure4-cost")


def test_files_and_page_show_the_same_detectors(
    every: tuple[ChartSet, dict[str, Figure]],
) -> None:
    of, drawn = every
    charts = [chart for chart in chart_values(of) if chart["scatter"]]
    assert [chart["x"]["label"] for chart in charts] == [
        "tokens saved",
        "of the tokens wasted, spared",
    ]
    panels = [panel for chart in charts for panel in chart["panels"]]
    axes = drawn["figure5-detectors"].axes
    assert len(axes) == len(panels) == 4
    assert panels[0]["title"] == "easy (4 configurations)", "controls are no methods"
    for axis, panel in zip(axes, panels, strict=True):
        for size, key in ((3, "points"), (6.5, "total")):
            shown = [
                (float(line.get_xdata()[0]), float(line.get_ydata()[0]) / 100)
                for line in axis.lines
                if line.get_markersize() == size and line.get_marker() != "None"
            ]
            given = [(p["x"], p["y"]) for line in panel["lines"] for p in line[key]]
            assert shown == [pytest.approx(one) for one in given]
        (front,) = [line for line in axis.lines if line.get_drawstyle() == "steps-pre"]
        assert [
            (x, y / 100) for x, y in zip(front.get_xdata(), front.get_ydata(), strict=True)
        ] == [pytest.approx(one) for one in panel["frontier"]]


def test_no_two_series_look_alike(every: tuple[ChartSet, dict[str, Figure]]) -> None:
    """A control has marks of its own, whatever its number, on the page as anywhere."""
    of, drawn = every
    for figure in (drawn["figure1-accuracy-length"], drawn["figure4-cost"]):
        looks = [(to_hex(x.get_color()), x.get_marker(), x.get_linestyle()) for x in legend(figure)]
        assert len(looks) == len(set(looks)) > 8
    head = terminal.draw([of], width=70).plain.splitlines()[0]
    marks = [mark for group in (terminal._MARKS, terminal._CONTROL_MARKS) for mark in group[0]]
    assert sorted(mark for mark in marks if mark in head) == sorted("●▲★♥♠♣")
    styles = [json.dumps(one["style"]) for one in chart_values(of)[0]["panels"][0]["lines"]]
    assert len(set(styles)) == 6


def legend(figure: Figure) -> Iterator[Any]:
    (one,) = figure.legends
    yield from one.get_lines()


def test_a_panel_is_wide_enough_for_every_mark() -> None:
    """So that what is compared above are marks and not stars for two in one cell."""
    (of,) = every_chart(samples())
    body: list[Text] = list(terminal.draw([of], width=70).split("\n"))
    assert not any("*" in line.plain for line in body)
