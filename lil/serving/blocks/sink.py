"""`sink` by blocks: the first blocks and the last ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention.contract import Counts
from attention.errors import InvalidValue
from attention.methods.sink import Sink
from lil.serving.blocks.policy import BlockPolicy, check_dense, check_whole


class SinkBlocks(BlockPolicy):
    """Reads the first `sinks` tokens and the last budget - sinks of whole blocks.

    Unlike `attention.Sink`, whose window moves by a token, this one moves by a block: the one that
    is being filled counts as a whole, so that a query reads up to block - 1 tokens less than its
    budget and never more. Keys keep the position they were seen at.

    Raises:
        InvalidValue: positions that are turned, a prompt that stays, or parts that are no whole
            blocks.
    """

    kind = Sink
    method: Any

    def check(self) -> None:
        if self.method.turns_keys:
            allowed = "'absolute': an engine stores keys with their positions in them"
            raise InvalidValue("positions", self.method.positions, allowed)
        check_dense(self.method)
        check_whole("sinks", self.method.sinks, self.block)
        check_whole("budget", self.method.budget, self.block)

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        first = self.method.sinks // self.block
        last = (self.method.budget - self.method.sinks) // self.block
        begun = -(-seen // self.block)
        return np.full_like(seen, first), np.maximum(begun - last, first)
