"""`window` over blocks: the newest tokens, to the token."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention.contract import Counts
from attention.methods.window import Window
from lil.serving.blocks.policy import BlockPolicy, check_dense


class WindowBlocks(BlockPolicy):
    """Reads the last `budget` tokens, exactly as `attention.Window` does.

    An engine's kernel knows windows and leaves out what comes before one inside a block.

    Raises:
        InvalidValue: a prompt that stays.
    """

    kind = Window
    method: Any

    def check(self) -> None:
        check_dense(self.method)

    @property
    def window(self) -> int:
        budget: int = self.method.budget
        return budget

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        return np.zeros_like(seen), np.maximum(seen - self.window, 0) // self.block

    def leaves_out(self, seen: Counts) -> Counts:
        found: Counts = seen > self.window
        return found

    def blocks_read(self, seen: Counts) -> Counts:
        read: Counts = -(-seen // self.block) - self.gap(seen)[1]
        return read

    def tokens_read(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.window)
