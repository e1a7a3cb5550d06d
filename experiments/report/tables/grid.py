"""A table in no markup yet, for a terminal of some width or as HTML."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from experiments.report.tables.cells import TableCell

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
    table = next((table for table in tables if _natural_width(table) <= width), tables[-1])
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


def _natural_width(table: Table) -> int:
    """Columns of a terminal that a table takes when nothing in it is wrapped."""
    return Console(file=io.StringIO(), width=10_000).measure(table).maximum


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
