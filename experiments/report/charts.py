"""What a chart is, drawn alike by figures and the page.

A drawer chooses no rows, no detector and no style of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from experiments.report.row import DetectorAction, ReportRow
from experiments.store.samples.sample import Role

Unit = Literal["percent", "points", "tokens", "times", "ratio"]

#: Why a configuration has no cost.
NONE_SOLVED = "none solved"


@dataclass(frozen=True)
class Axis:
    """An axis in the data's units; without ends or ticks they follow the data."""

    label: str
    unit: Unit
    is_log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Style:
    """What a series looks like in every panel: each role has its own colours and marks."""

    role: Role | Literal["full", "detector"]
    colour: int = 0
    mark: int = 0


@dataclass(frozen=True)
class Point:
    """A mark with the intervals of y and x: without x a level; without y, `missing` says why."""

    x: float | None
    y: float | None
    low: float | None = None
    high: float | None = None
    left: float | None = None
    right: float | None = None
    words: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Series:
    """Points that belong together, by x, and all of them together as `total`.

    `detector`: under which the same is shown once more, where that moves any point.
    """

    name: str
    style: Style
    points: tuple[Point, ...]
    detector: DetectorAction | None = None
    total: Point | None = None

    @property
    def is_level(self) -> bool:
        """Whether it is a number that holds at every x."""
        return bool(self.points) and self.points[0].x is None


@dataclass(frozen=True)
class Panel:
    """One pair of axes: levels first, then lines, then those under a detector.

    `front` leads through the totals that no other beats in both numbers.
    """

    dataset: str
    words: str
    series: tuple[Series, ...]
    front: tuple[tuple[float, float], ...] = ()

    @property
    def levels(self) -> list[Series]:
        """Full attention and nulls."""
        return [line for line in self.series if line.is_level]

    @property
    def lines(self) -> list[Series]:
        """What is measured at several x, as decoded."""
        return [line for line in self.series if not line.is_level and line.detector is None]

    @property
    def under_detector(self) -> list[Series]:
        """The same under the detector."""
        return [line for line in self.series if line.detector is not None]

    def place(self, of: Series) -> int:
        """A line's number among the lines, which the same under a detector shares."""
        return [line.name for line in self.lines].index(of.name)


@dataclass(frozen=True)
class Chart:
    """Panels with the same axes; `note` says how to read them."""

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class ChartSet:
    """The charts of one model under one penalty, with full attention without penalty.

    `subject` tells this set from others; `detector` is shown in the charts, `others` are in the
    charts of detectors alone.
    """

    model: str
    penalty: str
    subject: str
    rows: tuple[ReportRow, ...]
    charts: tuple[Chart, ...]
    detector: DetectorAction | None
    others: tuple[DetectorAction, ...]

    def chart(self, key: str) -> Chart:
        """The chart with that key."""
        return next(chart for chart in self.charts if chart.key == key)


def front(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Those that no other beats in one number without losing in the other, by the first."""
    every = set(points)
    beaten = {
        point
        for point in every
        for other in every
        if other != point and other[0] >= point[0] and other[1] >= point[1]
    }
    return tuple(sorted(every - beaten))
