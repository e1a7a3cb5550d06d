"""Marks stand where the numbers say, in every width."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from rich.text import Text
from synthetic_samples import demo, guarded, sample, sparse

from experiments.report.chart_sets import chart_sets
from experiments.report.measures import rows
from experiments.report.row import ReportRow
from experiments.report.terminal import draw as draw_sets


def draw(found: Sequence[ReportRow], width: int = 80) -> Text:
    return draw_sets(chart_sets(found), width)


def chart(text: str, title: str) -> list[str]:
    """The nine lines of the first chart with that title, of charts below each other."""
    shown = text.splitlines()
    at = next(i for i, line in enumerate(shown) if line.startswith(title))
    return shown[at + 1 : at + 10]


def height_of(mark: str, lines: list[str]) -> float:
    """Share of the axis at which the only such mark stands."""
    (at,) = [i for i, line in enumerate(lines) if mark in line]
    return 1 - at / (len(lines) - 1)


def test_marks_stand_at_their_values() -> None:
    samples = [sample(i, correct=i < 4, tokens=100) for i in range(4)]
    samples += [sparse(i, correct=i < 2, tokens=300) for i in range(4)]
    samples += [sparse(i, backend="quest", correct=i < 1, tokens=400) for i in range(4)]
    text = draw(rows(samples, seed=0), width=50).plain
    solved, tokens = chart(text, "solved"), chart(text, "output tokens")
    assert height_of("╌", solved) == 1
    assert height_of("●", solved) == 0.5
    assert height_of("■" if "■" in solved else "▲", solved) == 0.25
    assert height_of("╌", tokens) == 0.25
    assert height_of("●", tokens) == 0.75
    assert height_of("▲", tokens) == 1
    assert [line[:5].strip() for line in solved[::2]] == ["100", "75", "50", "25", "0"]
    assert [line[:5].strip() for line in tokens[::2]] == ["400", "300", "200", "100", "0"]


def test_a_detector_is_a_hollow_mark_where_it_changes_something() -> None:
    samples = [sample(i, tokens=100) for i in range(3)]
    alone = [sparse(i, tokens=400) for i in range(3)]
    text = draw(rows(samples + alone + [guarded(a, 200) for a in alone], seed=0), width=50).plain
    assert height_of("●", chart(text, "output tokens")) == 1
    assert height_of("○", chart(text, "output tokens")) == 0.5
    assert not any("○" in line for line in chart(text, "solved"))
    assert "hollow: guardian" in text


def test_equal_backends_stay_visible_side_by_side() -> None:
    samples = [sample(i) for i in range(3)]
    samples += [
        sparse(i, backend=backend, budget=budget)
        for backend in ("h2o", "sink", "quest", "infllm")
        for budget in (16, 32, 64, 128)
        for i in range(3)
    ]
    for width in (50, 72, 80, 120, 200):
        text = draw(rows(samples, seed=0), width=width).plain
        body = "\n".join(text.splitlines()[1:])
        assert all(body.count(mark) == 8 for mark in "●▲■◆"), width


@pytest.mark.parametrize("width", [40, 60, 71, 72, 80, 100, 132])
def test_width_is_kept_and_every_level_has_a_panel(width: int) -> None:
    text = draw(rows(demo(problems=6), seed=0), width=width).plain
    body = [line for line in text.splitlines() if line[:1] in (" ", "s", "o")]
    assert max(map(len, body)) <= width
    assert [line.split()[0] for line in text.splitlines() if "╌ full" in line] == [
        "easy",
        "medium",
        "hard",
    ]
    for label in ("16", "32", "64", "128"):
        assert text.split().count(label) == 6


def test_colour_is_there_but_not_needed() -> None:
    drawn = draw(rows(demo(problems=4), seed=0))
    assert {"cyan", "yellow", "magenta", "green"} <= {str(span.style) for span in drawn.spans}
    assert "\x1b" not in drawn.plain


def test_order_of_rows_changes_nothing() -> None:
    found = rows(demo(problems=4), seed=0)
    shuffled = found.copy()
    random.Random(1).shuffle(shuffled)
    assert draw(shuffled) == draw(found)


def test_small_lengths_keep_whole_numbers_on_the_axis() -> None:
    samples = [sample(0, tokens=3), sparse(0, tokens=5)]
    tokens = chart(draw(rows(samples, seed=0), width=50).plain, "output tokens")
    assert [line[:5].strip() for line in tokens[::2]] == ["8", "6", "4", "2", "0"]


def test_missing_values_and_missing_runs_leave_gaps() -> None:
    assert draw([]).plain == ""
    only_full = draw(rows([sample(0)], seed=0)).plain
    assert "●" not in only_full
    unscored = [sample(0, correct=None), sparse(0, correct=None, tokens=100)]
    text = draw(rows(unscored, seed=0), width=50).plain
    assert not any("●" in line for line in chart(text, "solved"))
    assert any("●" in line for line in chart(text, "output tokens"))
