"""What a chart is, drawn alike by figures, the page and the terminal.

A drawer may leave a chart out, for which its medium has no room, but it chooses no rows, no
detector and no style of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from experiments.report.row import (
    ReportRow,
)
from experiments.store.samples.sample import Role

Unit = Literal["percent", "points", "tokens", "times", "ratio"]
DetectorAction = tuple[str, str]

#: Why a configuration has no cost.
NONE_SOLVED = "none solved"


@dataclass(frozen=True)
class Axis:
    """What an axis is, in the data's units: shares and points are fractions.

    Attributes:
        label: what stands at it.
        unit: how its numbers are said.
        is_log: equal factors are equal steps.
        low, high: where it begins and ends; None: where the data do.
        ticks: where its numbers stand; empty: wherever suits.
    """

    label: str
    unit: Unit
    is_log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Style:
    """What a series looks like, the same in every panel.

    Attributes:
        role: what it is drawn for; each role has colours and marks of its own.
        colour, mark: numbers among those.
    """

    role: Role | Literal["full", "detector"]
    colour: int = 0
    mark: int = 0


@dataclass(frozen=True)
class Point:
    """A mark.

    Attributes:
        x: None: a level, at every x.
        y: None: not known.
        low, high: of y's 95% interval; None where there is none.
        left, right: of x's, where x is measured.
        words: what a reader should know beside the numbers.
        missing: why y is not known.
    """

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
    """Points that belong together, by x.

    Attributes:
        name: as tables call it.
        style: what it looks like.
        points: at least one.
        detector: under which the same is shown once more, where that moves any point.
        total: all of its points together.
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
    """One pair of axes.

    Attributes:
        dataset: what it is about.
        words: how much of it.
        series: levels first, then lines, then those under a detector.
        front: what leads through the totals that no other beats in both numbers.
    """

    dataset: str
    words: str
    series: tuple[Series, ...]
    front: tuple[tuple[float, float], ...] = ()

    @property
    def levels(self) -> list[Series]:
        """Full attention and nulls."""
        return [one for one in self.series if one.is_level]

    @property
    def lines(self) -> list[Series]:
        """What is measured at several x, as decoded."""
        return [one for one in self.series if not one.is_level and one.detector is None]

    @property
    def under_detector(self) -> list[Series]:
        """The same under the detector."""
        return [one for one in self.series if one.detector is not None]

    def place(self, of: Series) -> int:
        """A line's number among the lines, which the same under a detector shares."""
        return [one.name for one in self.lines].index(of.name)


@dataclass(frozen=True)
class Chart:
    """Panels with the same axes.

    Attributes:
        key: by which drawers know it.
        title, note: what it shows, and how to read it.
    """

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class ChartSet:
    """The charts of one model under one penalty, full attention without penalty beside it.

    Attributes:
        model: its short name.
        penalty: or "none".
        subject: model and penalty, as far as they tell this set from others.
        rows: that the charts are of, under short names.
        detector: which the charts show beside none, if any; the `others` are in the charts of
            detectors alone.
    """

    model: str
    penalty: str
    subject: str
    rows: tuple[ReportRow, ...]
    charts: tuple[Chart, ...]
    detector: DetectorAction | None
    others: tuple[DetectorAction, ...]

    def chart(self, key: str) -> Chart:
        """One of them."""
        return next(one for one in self.charts if one.key == key)


def front(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Those that no other beats in one number without losing in the other, by the first."""
    apart = set(points)
    return tuple(
        sorted(
            one
            for one in apart
            if not any(
                other[0] >= one[0] and other[1] >= one[1] and other != one for other in apart
            )
        )
    )
