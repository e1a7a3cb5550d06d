"""Figures: every one is written, and shows the rows' numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reports import report_of
from synthetic_samples import demo, sample

from experiments.report.charts import chart_sets
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
                    interval = value(rows[panel.title.split()[0], line.name, point.x])
                    assert (point.y, point.low, point.high) == (
                        interval.estimate,
                        interval.low,
                        interval.high,
                    )
    (pool,) = report.pools
    (line,) = charts.chart("detectors").panels[0].lines
    assert (line.total.x, line.total.left) == (pool.effect.tokens.estimate, pool.effect.tokens.low)
    assert (line.total.y, line.total.high) == (pool.effect.change.estimate, pool.effect.change.high)
    assert len(line.points) == pool.cells == 24


def test_full_attention_alone_has_no_charts() -> None:
    assert chart_sets(report_of([sample(0)])) == []


@pytest.mark.slow
def test_every_figure_is_written_twice_alike(tmp_path: Path) -> None:
    samples = demo(problems=2)
    report = report_of([*samples, *(replace(plain, penalty="lz") for plain in samples)])
    sets = chart_sets(report)
    first, second = (draw(report, sets, tmp_path / name) for name in ("a", "b"))
    assert len(first) == 20  # of each penalty five, as PNG and SVG
    for left, right in zip(first, second, strict=True):
        assert left.read_bytes() == right.read_bytes()
    drawn = (tmp_path / "a" / "figure1-accuracy-length.svg").read_text()
    for words in ("full attention", "sparse attention", "Accuracy and output length"):
        assert words in drawn
