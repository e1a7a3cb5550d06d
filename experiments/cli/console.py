"""The console every command writes on: its styles are its own, its text steers no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from experiments.cli.output import shown


class Console(rich.console.Console):
    """A console of rich that shows text by `output.shown`, wherever in a table or bar it stands.

    Args:
        stderr: write there instead of to stdout.
    """

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
