"""Numbers as readers see them, and a cell: a value, its interval, and whether it says something."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.report.statistics import Change, Interval

MISSING = "—"


@dataclass(frozen=True)
class TableCell:
    """A cell of a table, in no markup yet.

    Attributes:
        value: the number, or words in its place.
        interval: its 95% interval in brackets, or nothing.
        bold: the interval leaves out no change.
        star: a test is significant; None where nothing is tested in this column.
    """

    value: str = MISSING
    interval: str = ""
    bold: bool = False
    star: bool | None = None

    @property
    def mark(self) -> str:
        """A star, or the room of one where another cell of the column may have it."""
        return "" if self.star is None else "*" if self.star else "\u00a0"


def incomplete(there: int, of: int, columns: int) -> list[TableCell]:
    """A configuration whose missing outputs are its longest has no numbers to compare."""
    words = f"{there} of {of}," if there else f"{of} missing,"
    return [TableCell(words), TableCell("not comparable"), *[TableCell()] * columns][:columns]


def number(value: float | None, form: str = "d") -> TableCell:
    """A number in Python's format."""
    return TableCell() if value is None else TableCell(f"{value:{form}}")


def whole_percent(value: float | None) -> TableCell:
    """A share with its sign."""
    return TableCell() if value is None else TableCell(f"{percent(value)}%")


def share(of: Interval) -> TableCell:
    """A share in per cent, with its interval if there is one."""
    if of.estimate is None:
        return TableCell()
    if of.low is None or of.high is None:
        return TableCell(percent(of.estimate))
    return TableCell(percent(of.estimate), f"[{percent(of.low)}, {percent(of.high)}]")


def ratio(of: Interval, claimed: bool = False) -> TableCell:
    """A ratio; bold where it is claimed that it is not 1."""
    if of.estimate is None or (of.low is None and of.high is None):
        return number(of.estimate, ".2f")
    least = "0" if of.low is None else f"{of.low:.2f}"
    most = "∞" if of.high is None else f"{of.high:.2f}"
    return TableCell(f"{of.estimate:.2f}", f"[{least}, {most}]", bold=claimed)


def change(of: Interval, claimed: bool = False) -> TableCell:
    """A change in points; bold where it is claimed that it is not 0."""
    if of.estimate is None or of.low is None or of.high is None:
        return TableCell()
    return TableCell(points(of.estimate), f"[{_bound(of.low)}, {_bound(of.high)}]", claimed)


def tested(of: Change) -> list[TableCell]:
    """A change in points, starred where p < 0.05, and the answers lost and gained."""
    star = None if of.estimate is None else of.p is not None and of.p < 0.05
    return [TableCell(points(of.estimate), star=star), number(of.lost), number(of.gained)]


def _bound(value: float) -> str:
    """Whole points, but never a 0 where the bound is not."""
    text = f"{100 * value:.0f}"
    return text if int(text) or not value else f"{100 * value:.1g}"


def percent(value: float) -> str:
    """A share in whole per cent, but never 0 or 100 where it is not."""
    text = f"{100 * value:.0f}"
    if text == "0" and value:
        return "<1"
    return ">99" if text == "100" and value < 1 else text


def points(value: float | None) -> str:
    """A change in points."""
    if value is None:
        return MISSING
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text


def large(value: float | None) -> TableCell:
    """A large number in few characters: 142.8k, 1.23M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value is not None and value >= size:
            return TableCell(f"{value / size:.4g}{unit}")
    return number(value, ".4g")
