"""Base class of layers that keep the newest tokens of a row, and maybe its first ones."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from attention.core.kernels import dense, group
from attention.core.slots import Slots
from attention.core.step import Counts, Step
from attention.engines import QKV
from attention.layers.layer import Geometry, Layer, Method, gather


class Ring(Layer):
    """The first tokens in the first slots, the newest in a ring behind them.

    A slot follows from a position, so positions are not stored.

    Args:
        limit: tokens kept.
        sinks: first tokens of a row that stay.
    """

    def __init__(self, geometry: Geometry, backend: Method, limit: int, sinks: int = 0) -> None:
        super().__init__(geometry, backend)
        self.limit = limit
        # What layers share that keep the same tokens.
        self.kind: tuple[Hashable, ...] = type(self), limit
        self.sinks: Counts = np.full(geometry.B, sinks)  # of each row
        self._row_counts["sinks"] = sinks
        self.k = self.slots("k", (geometry.D,), limit=limit)
        self.v = self.slots("v", (geometry.D,), limit=limit)
        # What is remembered of the token in each slot; a new one starts with what is empty.
        self.memories: list[Slots] = []

    def slot_of(self, position: Counts) -> Counts:
        """Slot of each position, for the newest tokens and the sinks."""
        sinks = self.sinks.reshape(-1, *([1] * (position.ndim - 1)))
        ring = sinks + (position - sinks) % (self.limit - sinks)
        return np.where(position < sinks, position, ring)

    def held_positions(self, seen: Counts, sinks: Counts) -> Counts:
        """Positions held, oldest first, (B, most held); rows with fewer end in -1."""
        index = np.arange(min(int(seen.max()), self.limit))
        gone = np.maximum(seen - self.limit, 0)[:, None]
        position = np.where(index < sinks[:, None], index, index + gone)
        return np.where(position < seen[:, None], position, -1)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.check(step)
        self.write(k, v, step)
        g, occupancy = self.geometry, step.occupancy(self.limit)
        query = group(q, g.Hkv, scaling)
        return g.engine.attend(QKV(query, self.k.data, self.v.data, g.sink_logits), occupancy).out

    def write(self, k: Tensor, v: Tensor, step: Step) -> None:
        """Put the token of a decode step into its slot."""
        most, Hkv = step.occupancy(self.limit).most, self.geometry.Hkv
        arriving = ((self.k, k), (self.v, v), *((slots, None) for slots in self.memories))
        for slots, _ in arriving:
            slots.fit(most)
        here = step.memo(("slot", self.kind), lambda: self.slot_of(step.past))
        at = step.flat(here, Hkv, self.k.capacity, self.kind)
        self.geometry.engine.put(arriving, at)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        counts, g = np.minimum(step.past, self.limit), self.geometry
        keys, values = (
            self.join(slots.data, new, counts, step) for slots, new in ((self.k, k), (self.v, v))
        )
        square = not step.past.any() and not step.padded
        last = step.last_visible(counts, self.kind)
        out = dense(q, keys, values, scaling, last, square, g.sink_logits, g.model_window)
        self.cut(keys, values, counts, step)
        return out

    def join(self, stored: Tensor, new: Tensor, counts: Counts, step: Step) -> Tensor:
        """Everything held, `counts` tokens of each row, and the new tokens, oldest first."""
        before = self.held_positions(step.past, self.sinks)
        index = step.memo(
            ("held", self.kind), lambda: step.tensor(self.slot_of(before.clip(0)))[:, None]
        )
        return step.join(gather(stored, index), counts, new)

    def cut(self, keys: Tensor, values: Tensor, counts: Counts, step: Step) -> None:
        """Of all tokens, oldest first, store the sinks and the newest in their slots."""
        self.keep_newest(self.k, keys, counts, step)
        self.keep_newest(self.v, values, counts, step)

    def keep_newest(self, slots: Slots, tokens: Tensor, counts: Counts, step: Step) -> None:
        """`cut` of what is in these slots, (B, Hkv, n, ...)."""
        most = min(step.longest, self.limit)

        def source() -> Tensor:
            # Which of the joined tokens goes to each slot: the newest are their end.
            after = self.held_positions(step.seen, self.sinks)
            shift = np.where(after < self.sinks[:, None], 0, (step.past - counts)[:, None])
            index = np.zeros((step.rows, most), dtype=np.int64)
            rows, places = np.nonzero(after >= 0)
            slots = self.slot_of(after.clip(0))
            index[rows, slots[rows, places]] = (after - shift)[rows, places]
            return step.tensor(index)[:, None]

        slots.fit(most)
        slots.data[:, :, :most] = gather(tokens, step.memo(("cut", self.kind), source))

    # Accounting

    def kept(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.limit)

    def kept_positions(self, row: int, seen: int) -> Tensor:
        positions = self.held_positions(np.array([seen]), self.sinks[[row]])[0]
        return torch.from_numpy(positions).to(self.geometry.device).expand(self.geometry.Hkv, -1)
