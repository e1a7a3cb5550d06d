"""Numbers as readers see them, cells, and tables in no markup yet: for a terminal or as HTML."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

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


def ratio(of: Interval, claimed: bool = False, form: str = ".2f") -> TableCell:
    """A ratio or another number above 0; bold where it is claimed that it is not 1."""
    if of.estimate is None or (of.low is None and of.high is None):
        return number(of.estimate, form)
    least = "0" if of.low is None else f"{of.low:{form}}"
    most = "∞" if of.high is None else f"{of.high:{form}}"
    return TableCell(f"{of.estimate:{form}}", f"[{least}, {most}]", bold=claimed)


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


WIDTH = 80

_RIGHT = ' class="n"'
_FOLDED = 14  # characters of a label's line


@dataclass(frozen=True)
class Line:
    """Labels, of which a repeated one is shown once, then cells."""

    labels: tuple[str, ...]
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Grid:
    """A table's title, columns and lines; the first columns are the labels."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    caption: str = ""

    @property
    def labels(self) -> int:
        """How many columns hold labels."""
        return len(self.lines[0].labels) if self.lines else 0

    def shown_labels(self, at: int) -> tuple[str, ...]:
        """A line's labels, those left out that the line above has too."""
        labels = self.lines[at].labels
        above = self.lines[at - 1].labels if at else ()
        shared = 0
        while shared < len(labels) and above[: shared + 1] == labels[: shared + 1]:
            shared += 1
        return ("",) * shared + labels[shared:]

    def is_last(self, at: int) -> bool:
        """Whether another group begins below a line."""
        return at + 1 == len(self.lines) or any(self.shown_labels(at + 1))


def rich_table(grid: Grid, width: int = WIDTH) -> Table:
    """The table for rich; where it is too wide labels are folded, then intervals wrap."""
    forms: tuple[tuple[str, int | None], ...] = ((" ", None), (" ", _FOLDED), ("\n", _FOLDED))
    tables = [_table(grid, *form) for form in forms]
    unbounded = Console(file=io.StringIO(), width=10_000)  # nothing is wrapped on it
    fitting = (table for table in tables if unbounded.measure(table).maximum <= width)
    table = next(fitting, tables[-1])
    table.title = Text(grid.title)
    table.caption = Text(grid.caption) if grid.caption else None
    return table


def _table(grid: Grid, between: str, widest: int | None) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=between == " ",
        title_justify="left",
        caption_justify="left",
    )
    for at, name in enumerate(grid.columns):
        side: JustifyMethod = "left" if at < grid.labels else "right"
        most = widest if at < grid.labels else None
        table.add_column(Text(name), justify=side, overflow="fold", max_width=most)
    for at, line in enumerate(grid.lines):
        cells = (_text(cell, between) for cell in line.cells)
        labels = map(Text, grid.shown_labels(at))
        table.add_row(*labels, *cells, end_section=grid.is_last(at))
    return table


def _text(cell: TableCell, between: str) -> Text:
    interval = cell.interval if between == " " else cell.interval.replace(" ", "")
    text = Text(between.join(filter(None, (cell.value, interval))), "bold" if cell.bold else "")
    return text.append(cell.mark, "not bold")


def html_table(grid: Grid, number: int) -> str:
    """The table for a page by its `number`; each line has its labels, for screen readers too."""
    head = "".join(
        f'<th scope="col"{_RIGHT if at >= grid.labels else ""}>{escape(name)}</th>'
        for at, name in enumerate(grid.columns)
    )
    body = ""
    for at, line in enumerate(grid.lines):
        labels = "".join(f'<th scope="row">{escape(label)}</th>' for label in line.labels)
        cells = "".join(f"<td{_RIGHT}>{_html_cell(cell)}</td>" for cell in line.cells)
        body += f"<tr>{labels}{cells}</tr>" + ("</tbody><tbody>" if grid.is_last(at) else "")
    note = f'<p class="note">{escape(grid.caption)}</p>' if grid.caption else ""
    return (
        f'<div class="table"><div class="scroll" role="region" tabindex="0" '
        f'aria-labelledby="table-{number}"><table><caption id="table-{number}">'
        f"{escape(grid.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body.removesuffix('</tbody><tbody>')}</tbody></table></div>{note}</div>"
    )


def _html_cell(cell: TableCell) -> str:
    text = escape(" ".join(filter(None, (cell.value, cell.interval))))
    return (f"<b>{text}</b>" if cell.bold else text) + cell.mark


def escape(value: object) -> str:
    """Text as HTML takes it; half a surrogate pair, which no file can hold, becomes U+FFFD."""
    whole = str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return html.escape(whole)
