"""A table in no markup yet, laid out for a given width, for a terminal or as HTML."""

from __future__ import annotations

import html
import io
import itertools
from dataclasses import dataclass, field, replace

from rich import box, markup
from rich.console import Console
from rich.table import Table

from experiments.report.tables.cells import TableCell

WIDTH = 80

_SMALL = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Line:
    """Labels, of which a repeated one is shown once, then cells."""

    labels: tuple[str, ...]
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Grid:
    """A table's title, columns and lines; `caption` says how to read it, `notes` what names mean.

    The first columns hold the labels, to the left; cells stand to the right.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    caption: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def labels(self) -> int:
        """How many columns hold labels."""
        return len(self.lines[0].labels) if self.lines else 0

    @property
    def explanation(self) -> str:
        """What stands below it."""
        return "; ".join(part for part in (*self.notes, self.caption) if part)

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
    """The table as rich prints it, without a wrapped cell wherever the width allows that.

    Where it does not fit, long names become short ones with a number, explained below; then
    intervals stand below their values.
    """
    return _table(*_laid_out(grid, width))


def _laid_out(grid: Grid, width: int) -> tuple[Grid, bool]:
    """The grid for that width, and whether intervals stand below their values."""
    if natural_width(_table(grid, False)) <= width:
        return grid, False
    numbered = _numbered(grid)
    return numbered, natural_width(_table(numbered, False)) > width


def html_table(grid: Grid, number: int, width: int = WIDTH) -> str:
    """The table with the cells that a terminal of that width shows, for screen readers as well.

    An empty cell under a label belongs to that label.

    Args:
        grid: what it shows.
        number: its own on the page.
        width: columns of the terminal.
    """
    grid, narrow = _laid_out(grid, width)
    head = "".join(
        f'<th scope="col"{_aligned(at >= grid.labels)}>{escape(name)}</th>'
        for at, name in enumerate(grid.columns)
    )
    ends = [-1, *(at for at in range(len(grid.lines)) if grid.is_last(at))]
    bodies = "".join(
        f"<tbody>{_html_body(grid, range(first + 1, last + 1), narrow)}</tbody>"
        for first, last in itertools.pairwise(ends)
    )
    note = f'<p class="note">{escape(grid.explanation)}</p>' if grid.explanation else ""
    return (
        f'<div class="table"><div class="scroll" role="region" tabindex="0" '
        f'aria-labelledby="table-{number}"><table><caption id="table-{number}">'
        f"{escape(grid.title)}</caption><thead><tr>{head}</tr></thead>{bodies}</table></div>{note}"
        "</div>"
    )


def _html_body(grid: Grid, lines: range, narrow: bool) -> str:
    labels = [grid.shown_labels(at) for at in lines]
    out = []
    for at, (line, shown) in enumerate(zip(lines, labels, strict=True)):
        cells = []
        for column, label in enumerate(shown):
            if label or at == 0:
                below = (other[column] for other in labels[at + 1 :])
                span = 1 + len(list(itertools.takewhile(lambda text: not text, below)))
                over = f' rowspan="{span}"' if span > 1 else ""
                cells.append(f'<th scope="row"{over}>{escape(label)}</th>')
        cells += [
            f"<td{_aligned(True)}>{_html_cell(c, narrow)}</td>" for c in grid.lines[line].cells
        ]
        out.append(f"<tr>{''.join(cells)}</tr>")
    return "".join(out)


def _aligned(is_right: bool) -> str:
    return ' class="n"' if is_right else ""


def _html_cell(cell: TableCell, narrow: bool) -> str:
    text = escape(_inside(cell, narrow))
    text = f"<b>{text}</b>" if cell.bold and text else text
    return text if cell.star is None else text + ("*" if cell.star else "\u00a0")


def escape(value: object) -> str:
    """Text as HTML takes it; half a surrogate pair, which no file can hold, becomes U+FFFD."""
    whole = str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return html.escape(whole)


def natural_width(table: Table) -> int:
    """Columns of a terminal that a table takes when nothing in it is wrapped."""
    console = Console(file=io.StringIO(), width=10_000)
    named = table.title, table.caption
    table.title = table.caption = None
    least = console.measure(table).maximum
    table.title, table.caption = named
    return least


def _table(grid: Grid, narrow: bool) -> Table:
    caption = grid.explanation
    table = Table(
        title=markup.escape(grid.title),
        caption=markup.escape(caption) or None,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=not narrow,
        title_justify="left",
        caption_justify="left",
    )
    for at, name in enumerate(grid.columns):
        table.add_column(
            markup.escape(name), justify="left" if at < grid.labels else "right", overflow="fold"
        )
    for at, line in enumerate(grid.lines):
        table.add_row(
            *(markup.escape(label) for label in grid.shown_labels(at)),
            *(_marked(cell, narrow) for cell in line.cells),
            end_section=grid.is_last(at),
        )
    return table


def _inside(cell: TableCell, narrow: bool) -> str:
    between = "\n" if narrow else " "
    interval = cell.interval.replace(" ", "") if narrow else cell.interval
    return f"{cell.value}{between}{interval}" if interval else cell.value


def _marked(cell: TableCell, narrow: bool) -> str:
    text = markup.escape(_inside(cell, narrow))
    # A bracket after a line's beginning or a blank is text, whatever stands in it.
    between = "\n" if narrow else " "
    text = text.replace(f"{between}[", f"{between}\\[")
    text = f"[bold]{text}[/]" if cell.bold else text
    return text if cell.star is None else text + ("*" if cell.star else "\u00a0")


def _numbered(grid: Grid, longest: int = 12) -> Grid:
    """Long labels and headings cut at their first blank, with a number that a note explains."""
    notes: dict[str, str] = {}

    def short(name: str) -> str:
        if len(name) <= longest:
            return name
        if name not in notes:
            number = str(len(notes) + 1).translate(_SMALL)
            notes[name] = f"{name.split(' ')[0][: longest - 3]}{number}"
        return notes[name]

    lines = [replace(line, labels=tuple(map(short, line.labels))) for line in grid.lines]
    wide = [max(len(line.cells[at].text) for line in lines) for at in range(len(lines[0].cells))]
    columns = [
        name if at < grid.labels or len(name) <= wide[at - grid.labels] else short(name)
        for at, name in enumerate(grid.columns)
    ]
    told = tuple(f"{shown}: {name}" for name, shown in notes.items())
    return replace(grid, columns=tuple(columns), lines=tuple(lines), notes=told)
