"""`window` over blocks: the newest tokens, to the token."""

from __future__ import annotations

from typing import Any

from attention.methods.window import Window
from lil.serving.blocks.policy import check_dense
from lil.serving.blocks.sink import SinkBlocks


class WindowBlocks(SinkBlocks):
    """Reads what `attention.Window` reads: the same as `sink` without sinks.

    Raises:
        InvalidValue: a prompt that stays.
    """

    kind = Window
    method: Any

    def check(self) -> None:
        check_dense(self.method)

    @property
    def sinks(self) -> int:
        return 0
