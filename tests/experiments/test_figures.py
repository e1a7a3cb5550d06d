"""Figures show the numbers of the rows, as whole files, and leave no trace in matplotlib."""

from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from crowded_samples import crowded
from drawn_figures import drawn_figures
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from synthetic_samples import demo, guarded, sample, sparse

from experiments.report import figures as module
from experiments.report.chart_sets import chart_sets
from experiments.report.charts import front
from experiments.report.figures import Conditions, drawing
from experiments.report.measures import rows
from experiments.store.samples.sample import Sample
from experiments.store.workers import processes


@pytest.fixture(scope="module")
def sweep() -> list[Sample]:
    return demo(problems=6, budgets=(16, 32, 64), backends=("h2o", "quest"))


@pytest.fixture(scope="module")
def drawn(
    sweep: list[Sample], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Path], dict[str, Figure]]:
    """The files, and the figures as they were when saved."""
    kept: dict[str, Figure] = {}
    save = module.save

    def keep(figure: Figure, stem: Path) -> list[Path]:
        kept[stem.name] = figure
        return save(figure, stem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "save", keep)
        paths = drawn_figures(sweep, tmp_path_factory.mktemp("f") / "new")
    return paths, kept


def test_five_figures_as_png_and_svg_and_nothing_else(
    drawn: tuple[list[Path], dict[str, Figure]],
) -> None:
    paths, _ = drawn
    names = ["figure1-accuracy-length", "figure2-compression", "figure3-curves"]
    names += ["figure4-cost", "figure5-detectors"]
    assert [p.name for p in paths] == [n + end for n in names for end in (".png", ".svg")]
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
            assert path.read_bytes().endswith(b"IEND\xaeB`\x82")
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_figure_1_draws_every_row_and_full_attention_dashed(
    sweep: list[Sample], drawn: tuple[list[Path], dict[str, Figure]]
) -> None:
    axes = drawn[1]["figure1-accuracy-length"].axes
    assert [axis.get_title().split()[0] for axis in axes[:3]] == ["easy", "medium", "hard"]
    found = rows(sweep, seed=0)
    for column, dataset in enumerate(("easy", "medium", "hard")):
        for axis, name in ((axes[column], "accuracy"), (axes[3 + column], "mean_tokens")):
            solid = [line for line in axis.lines if line.get_linestyle() == "-"]
            shown = [list(line.get_ydata()) for line in solid]
            part = [r for r in found if r.dataset == dataset and r.detector == "none"]
            assert shown == [
                [getattr(row, name).estimate for row in part if row.backend == backend]
                for backend in ("h2o", "quest")
            ]
            (dashed,) = [line for line in axis.lines if line.get_linestyle() == "--"]
            assert set(dashed.get_ydata()) == {getattr(part[0], name).estimate}
            assert [tick.get_text() for tick in axis.get_xticklabels()] in (
                ["16", "32", "64"],
                [],
            )
            assert list(axis.get_xticks()) == [16, 32, 64]
            low, high = axis.get_ylim()
            assert all(low <= value <= high for line in shown for value in line)


def test_figure_1_draws_the_detector_only_where_it_moved_something(
    drawn: tuple[list[Path], dict[str, Figure]],
) -> None:
    axes = drawn[1]["figure1-accuracy-length"].axes
    dotted = [[line for line in axis.lines if line.get_linestyle() == ":"] for axis in axes]
    assert not any(dotted[:3])  # accuracy is the same with and without
    assert all(dotted[4:])
    for line in dotted[5]:
        assert line.get_ydata()[0] < 0.75 * axes[5].lines[1].get_ydata()[0]


def test_legend_covers_no_panel(drawn: tuple[list[Path], dict[str, Figure]]) -> None:
    for figure in drawn[1].values():
        renderer = FigureCanvasAgg(figure).get_renderer()
        (legend,) = figure.legends
        box = legend.get_window_extent(renderer)
        assert not any(box.overlaps(axis.get_tightbbox(renderer)) for axis in figure.axes)


def test_figure_2_is_the_compression_ratio(
    sweep: list[Sample], drawn: tuple[list[Path], dict[str, Figure]]
) -> None:
    axis = drawn[1]["figure2-compression"].axes[2]
    solid = [line for line in axis.lines if line.get_linestyle() == "-"]
    part = [r for r in rows(sweep, seed=0) if (r.dataset, r.detector) == ("hard", "none")]
    assert list(solid[0].get_ydata()) == [
        r.compression_ratio.estimate for r in part if r.backend == "h2o"
    ]


def test_figure_3_draws_one_line_a_sample_green_or_red_at_the_middle_budget(
    sweep: list[Sample], drawn: tuple[list[Path], dict[str, Figure]]
) -> None:
    figure = drawn[1]["figure3-curves"]
    assert "budget 32" in figure.get_suptitle()
    axis = figure.axes[3 + 1]  # second row h2o, second column medium
    assert figure.axes[3].get_ylabel().startswith("h2o")
    chosen = [
        s
        for s in sweep
        if (s.dataset, s.backend, s.budget, s.detector) == ("medium", "h2o", 32, "none")
    ]
    (drawn,) = axis.collections
    lines = [
        (*line[-1].tolist(), to_hex(colour))
        for line, colour in zip(drawn.get_segments(), drawn.get_color(), strict=True)
    ]
    assert len(lines) == len(chosen) == 6
    assert {s.correct for s in chosen} == {True, False}
    colours = {True: "#1a9850", False: "#d73027"}
    expected = sorted((*s.curve[-1][1:], colours[bool(s.correct)]) for s in chosen)
    assert sorted(lines) == expected
    ends = {
        (x, y, to_hex(marks.get_color()))
        for marks in axis.lines
        for x, y in zip(marks.get_xdata(), marks.get_ydata(), strict=True)
    }
    assert ends == set(expected)
    column = figure.axes[1::3]  # panels below each other can be compared by eye
    assert {(one.get_xlim(), one.get_ylim()) for one in column} == {
        (axis.get_xlim(), axis.get_ylim())
    }
    right = axis.get_xlim()[1]
    assert all(s.curve[-1][1] <= right for s in sweep if s.dataset == "medium" and s.budget == 32)


@pytest.mark.slow
def test_same_samples_same_svg_and_global_state_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it now fails
    before = matplotlib.rcParams.copy()
    small = demo(problems=3, budgets=(16, 32), backends=("h2o",), datasets=("easy",))
    first = drawn_figures(small, tmp_path / "a")
    second = drawn_figures(small[::-1], tmp_path / "b")
    assert [p.read_text() for p in first[1::2]] == [p.read_text() for p in second[1::2]]
    assert matplotlib.rcParams.copy() == before


def to_files(monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]) -> None:
    """Whatever is drawn into a file is written by `write`; into memory it is drawn as ever."""
    for canvas, name in ((FigureCanvasAgg, "print_png"), (FigureCanvasSVG, "print_svg")):
        draw = getattr(canvas, name)

        def print_(on: Any, to: Any, draw: Any = draw, **more: Any) -> None:
            if isinstance(to, str):
                write(Path(to))
            else:
                draw(on, to, **more)

        monkeypatch.setattr(canvas, name, print_)


def test_a_broken_save_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "figure1-accuracy-length.png").write_text("old")
    samples = [sample(0), sparse(0)]

    def full_disk(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    to_files(monkeypatch, full_disk)
    with pytest.raises(OSError, match="No space left"):
        drawn_figures(samples, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["figure1-accuracy-length.png"]
    assert (tmp_path / "figure1-accuracy-length.png").read_text() == "old"


def test_figure_1_shows_what_was_cut(
    sweep: list[Sample], drawn: tuple[list[Path], dict[str, Figure]]
) -> None:
    axes = drawn[1]["figure1-accuracy-length"].axes
    part = [r for r in rows(sweep, seed=0) if (r.dataset, r.detector) == ("hard", "none")]
    solid = [line for line in axes[8].lines if line.get_linestyle() == "-"]
    assert axes[6].get_ylabel() == "cut at the cap"
    assert list(solid[0].get_ydata()) == [r.capped / 6 for r in part if r.backend == "h2o"]
    assert max(solid[0].get_ydata()) > 0


def test_every_figure_says_under_which_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Figure] = {}
    monkeypatch.setattr(
        module, "save", lambda figure, stem: kept.update({stem.name: figure}) or [stem]
    )
    samples = [one for one in crowded(problems=2, budgets=(64,)) if one.penalty == "none"]
    drawn_figures(samples, tmp_path, Conditions(7, "bfloat16", "4x-full", 999))
    assert len(kept) == 5
    for name, figure in kept.items():
        said = " ".join(figure.texts[0].get_text().split())
        assert said.startswith(
            "model DeepThough…-Instruct; n = 2 samples a configuration; seed 7; "
        )
        assert "bfloat16; cap of sparse attention 4x-full, of full attention 999 tokens" in said
        assert ("in no ratio" in said) == ("figure4" in name)
        others = "not shown here: guardian (regenerate), mine:Streaks (densify), mine:Streaks"
        assert (others in said) == (name[:7] in ("figure1", "figure2", "figure4"))
        titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
        own = [title for title in titles if not title.startswith("all data sets")]
        assert len({title.split("\n")[0] for title in own}) == 2
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw_without_rendering()
        boxes = [a.title.get_window_extent(renderer) for a in figure.axes if a.get_title()]
        (legend,) = figure.legends
        boxes += [legend.get_window_extent(renderer), figure.texts[0].get_window_extent(renderer)]
        assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
        width, height = figure.canvas.get_width_height()
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 for box in boxes)
        assert all(box.y1 <= height for box in boxes)


def test_figure_4_has_intervals_gaps_and_crosses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing solved at 32, some at 64 and 256: no line leads over what is not known at 128."""
    kept: dict[str, Figure] = {}
    monkeypatch.setattr(module, "save", lambda figure, stem: kept.update({stem.name: figure}) or [])
    samples = [sample(i, keys_read=1000.0) for i in range(8)]
    for budget, solved in ((32, 0), (64, 1), (128, 0), (256, 8)):
        samples += [
            sparse(i, budget=budget, correct=i < solved, keys_read=500.0 + 10 * i) for i in range(8)
        ]
    found = rows(samples, seed=0)
    drawn_figures(samples, tmp_path)
    (axis,) = kept["figure4-cost"].axes
    (dashed,) = [line for line in axis.lines if line.get_linestyle() == "--"]
    assert set(dashed.get_ydata()) == {1.0}
    (line,) = [line for line in axis.lines if line.get_linestyle() == "-" and line is not dashed]
    known = [row.keys_read_per_solved_ratio.estimate for row in found if row.budget]
    assert [None if math.isnan(y) else y for y in line.get_ydata()] == known
    assert [value is None for value in known] == [True, False, True, False]
    crosses = [line for line in axis.lines if line.get_marker() == "x"]
    assert [round(line.get_xdata()[0]) for line in crosses] == [32, 128]
    bars = [tuple(p[:, 1]) for c in axis.collections for p in c.get_segments()]
    last = found[-1].keys_read_per_solved_ratio
    assert bars == [
        (last.low, last.high)
    ]  # one of eight solved at 64: nothing is known of its ends
    said = " ".join(kept["figure4-cost"].texts[0].get_text().split())
    assert "no bar: fewer than six problems are solved, or differ" in said
    low, high = axis.get_ylim()
    assert all(low < end <= high for bar in bars for end in bar)
    assert "none solved: no cost" in [t.get_text() for t in kept["figure4-cost"].legends[0].texts]


def test_figure_5_pools_each_detector_over_what_all_share(
    sweep: list[Sample], drawn: tuple[list[Path], dict[str, Figure]]
) -> None:
    axis = drawn[1]["figure5-detectors"].axes[2]
    hard = [r for r in rows(sweep, seed=0) if (r.dataset, r.detector) == ("hard", "guardian")]
    hard = [row for row in hard if row.backend != "full"]
    kept, whole = (
        sum(getattr(row, name) for row in hard)
        for name in ("detector_tokens", "detector_tokens_without")
    )
    (mark,) = [line for line in axis.lines if line.get_markersize() == 6.5]
    assert mark.get_xdata()[0] == pytest.approx(1 - kept / whole)
    small = [line for line in axis.lines if line.get_markersize() == 3]
    assert sorted(line.get_xdata()[0] for line in small) == sorted(
        r.token_savings.estimate for r in hard
    )
    bars = [p for c in axis.collections for p in c.get_segments()]
    (ends,) = [bar[:, 0] for bar in bars if bar[0, 0] < bar[1, 0]]
    assert ends[0] < mark.get_xdata()[0] < ends[1]


def test_figure_5_shows_the_waste_that_is_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Figure] = {}
    monkeypatch.setattr(module, "save", lambda figure, stem: kept.update({stem.name: figure}) or [])
    samples = []
    for item in range(6):
        cut = {"tokens": 200, "correct": False, "status": "capped"}
        plain = sparse(item, **cut, wasted_loop=100, wasted_tail=150 + item)
        left = {"correct": item == 5, "wasted_loop": 10, "wasted_tail": 60}
        samples += [sample(item), plain, replace(guarded(plain, 110), **left)]
    drawn_figures(samples, tmp_path)
    _, loops, tails = kept["figure5-detectors"].axes
    for axis, spared in ((loops, 0.9), (tails, 1 - 360 / 915)):
        (mark,) = [line for line in axis.lines if line.get_markersize() == 6.5]
        assert mark.get_xdata()[0] == pytest.approx(spared)
        assert mark.get_ydata()[0] == pytest.approx(100 / 6)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=8))
def test_the_front_is_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    best = front(points)
    for x, y in points:
        beaten = any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
        assert ((x, y) in best) != beaten
    assert list(best) == sorted(best)


def test_models_get_their_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_files(monkeypatch, lambda path: path.write_text("drawn"))
    samples = [make(0, model=m) for m in ("org/one", "two") for make in (sample, sparse)]
    names = [path.name for path in drawn_figures(samples, tmp_path)]
    assert names[0] == "figure1-accuracy-length-one.png"
    assert len(set(names)) == 16
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.slow
def test_processes_find_the_same_rows_and_draw_the_same_files(tmp_path: Path) -> None:
    both = [make(i, model=m) for m in ("one", "two") for i in (0, 1) for make in (sample, sparse)]
    found = rows(both, seed=0)
    alone = drawn_figures(both, tmp_path / "alone")
    with processes(2) as pool:
        assert rows(both, 0, pool=pool) == found
        helped = drawing(both, found, chart_sets(found, both), tmp_path / "helped", pool=pool)()
    assert [path.name for path in helped] == [path.name for path in alone]
    assert [path.read_bytes() for path in helped] == [path.read_bytes() for path in alone]


def test_nothing_sparse_nothing_drawn(tmp_path: Path) -> None:
    assert drawn_figures([], tmp_path / "none") == []
    only_full = [sample(0)]
    assert drawn_figures(only_full, tmp_path / "full") == []


@pytest.mark.filterwarnings("error")
def test_missing_values_leave_gaps(tmp_path: Path) -> None:
    unscored = [sample(0, correct=None, curve=()), sparse(0, correct=None, curve=())]
    unscored += [sample(0, dataset="hard"), guarded(unscored[1], 50)]
    assert len(drawn_figures(unscored, tmp_path)) == 10
