"""The console every command writes on: its styles are its own, its text steers no terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from experiments.cli.output import shown

#: Characters of a text that are shown by default.
SHOWN = 2000


class Console(rich.console.Console):
    """A console of rich that shows text by `output.shown`, wherever in a table or bar it is."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(stderr=stderr, file=getattr(stream, "styled", None), emoji=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """As rich; before anything is measured."""
        return super().render_str(shown(text), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich; what comes as styled text is known here first."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text), style, control)

    def plain(self, text: str = "", style: str | None = None, end: str = "\n") -> None:
        """Print a text as it is: no markup, no colours of numbers, no breaks of ours."""
        self.print(text, style=style, end=end, markup=False, highlight=False, soft_wrap=True)


def notify(notices: Iterable[str]) -> None:
    """Print each notice once on stderr."""
    console = Console(stderr=True)
    for notice in dict.fromkeys(notices):
        console.plain(f"lil: {notice}")


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str]
) -> Table:
    """A plain table; columns that `left` does not name are of numbers, which are never cut."""
    drawn = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    for name in columns:
        if name in left:
            drawn.add_column(name, overflow="fold")
        else:
            drawn.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        drawn.add_row(*map(escape, row))
    return drawn


def shortened(text: str, flag: str, whole: bool = False) -> str:
    """A text, of a long text its two ends and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters more: {flag}]\n{text[-half:]}"
