"""Figures: every one is written, and shows the rows' numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from crowded_samples import crowded
from reports import report_of
from synthetic_samples import demo, sample

from experiments.report.chart_sets import chart_sets
from experiments.report.charts import front
from experiments.report.figures import draw


def test_charts_have_the_rows_numbers() -> None:
    report = report_of(demo(problems=4, budgets=(16, 64)))
    (charts,) = chart_sets(report)
    rows = {
        (row.dataset, row.backend, row.budget): row for row in report.rows if row.detector == "none"
    }
    values = {
        "accuracy": lambda row: row.accuracy,
        "length": lambda row: row.mean_tokens,
        "cost": lambda row: row.keys_read_per_solved_ratio,
        "compression": lambda row: row.compression_ratio,
    }
    for key, value in values.items():
        for panel in charts.chart(key).panels:
            assert [line.name for line in panel.lines] == ["h2o", "sink", "quest", "infllm"]
            for line in panel.lines:
                for point in line.points:
                    interval = value(rows[panel.dataset, line.name, point.x])
                    assert (point.y, point.low, point.high) == (
                        interval.estimate,
                        interval.low,
                        interval.high,
                    )
    (totals,) = [chart for chart in charts.charts if chart.key == "detectors"]
    (pool,) = report.pools
    assert len(totals.panels) == 3
    (waste,) = [chart for chart in charts.charts if chart.key == "waste"]
    assert waste.panels[0].series == () or pool.loops.estimate is None


def test_the_front_is_what_no_other_beats() -> None:
    assert front([(0, 0), (1, -1), (1, -2), (0.5, -0.5), (0.4, -0.6)]) == (
        (0, 0),
        (0.5, -0.5),
        (1, -1),
    )


def test_full_attention_alone_has_no_charts() -> None:
    assert chart_sets(report_of([sample(0)])) == []


@pytest.mark.slow
def test_every_figure_is_written_twice_alike(tmp_path: Path) -> None:
    report = report_of(crowded(problems=2))
    sets = chart_sets(report)
    first, second = (draw(report, sets, tmp_path / name) for name in ("a", "b"))
    assert len(first) == 20  # of each penalty five, as PNG and SVG
    for left, right in zip(first, second, strict=True):
        assert left.read_bytes() == right.read_bytes()
    drawn = (tmp_path / "a" / "figure1-accuracy-length.svg").read_text()
    for words in ("full attention", "cap of sparse attention", "Accuracy and output length"):
        assert words in drawn
