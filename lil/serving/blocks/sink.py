"""`sink` over blocks: the first blocks and the newest tokens, to the token."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from attention.contract import Backend, Counts
from attention.errors import InvalidValue
from attention.methods.sink import Sink
from lil.serving.blocks.policy import BlockPolicy, Mask, check_dense, check_whole


class SinkBlocks(BlockPolicy):
    """Reads what `attention.Sink` reads with "absolute" positions and sinks of whole blocks.

    A kernel that knows windows leaves out the oldest tokens of its table. The block in which the
    window begins is therefore the first of the table, before the sinks.

    Raises:
        InvalidValue: positions that are turned, a prompt that stays, sinks that are no whole
            blocks, or a window below a block beside them.
    """

    kind: ClassVar[type[Backend]] = Sink
    method: Any

    def check(self) -> None:
        if self.method.turns_keys:
            allowed = "'absolute': an engine stores keys with their positions in them"
            raise InvalidValue("positions", self.method.positions, allowed)
        check_dense(self.method)
        check_whole("sinks", self.sinks, self.block)
        # A window within the last block begins and ends there, and only one end of a table is cut.
        least = self.sinks + self.block
        if self.sinks and self.window < least:
            allowed = f"at least sinks and the engine's block of {self.block} tokens, {least}"
            raise InvalidValue("budget", self.window, allowed)

    @property
    def sinks(self) -> int:
        """First tokens that are always read."""
        sinks: int = self.method.sinks
        return sinks

    @property
    def window(self) -> int:
        budget: int = self.method.budget
        return budget

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        first = self.sinks // self.block
        begin = (seen - self.window + self.sinks) // self.block
        return np.full_like(seen, first), np.maximum(begin, first)

    def leaves_out(self, seen: Counts) -> Mask:
        found: Mask = seen > self.window
        return found

    def tokens_read(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.window)
