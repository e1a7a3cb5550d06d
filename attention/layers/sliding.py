"""A layer in which the model itself slides a window: no method's, and exempt from the budget."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attention.core.kernels import dense, group
from attention.core.step import Counts, Step
from attention.engines import QKV, gpu
from attention.errors import InvalidValue
from attention.layers.layer import Geometry, KeepAll, Layer, Method


class DraftedLayer(KeepAll):
    """The same where drafts may be taken back: every token stays, and the window is read."""

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.prefill(q, k, v, scaling, step)

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.geometry.model_window or 0)

    def read_positions(self, row: int, seen: int) -> Tensor:
        return self.kept_positions(row, seen)[:, -(self.geometry.model_window or 0) :]


class SlidingLayer(Layer):
    """The model's own attention to the last `window` tokens, which stay in a ring.

    Unlike in `window` a prompt's queries see no more than the window either.
    """

    on_device = True

    def __init__(self, geometry: Geometry, backend: Method) -> None:
        super().__init__(geometry, backend)
        assert geometry.model_window is not None
        self.window = geometry.model_window
        self.k = self.slots("k", (geometry.D,), limit=self.window)
        self.v = self.slots("v", (geometry.D,), limit=self.window)

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        first = counts.number("nothing stays")
        return self.store_of(self.k, self.v, counts.seen, self.window, "ring", first=first)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        g, occupancy = self.geometry, step.occupancy(self.window)
        self.k.fit(occupancy.most)
        self.v.fit(occupancy.most)
        here = step.memo(("own slot", self.window), lambda: step.past % self.window)
        at = step.flat(here, g.Hkv, self.k.capacity, ("own", self.window))
        g.engine.put_all(((self.k, k), (self.v, v)), at)
        query = group(q, g.Hkv, scaling)
        return g.engine.attend(QKV(query, self.k.data, self.v.data, g.sink_logits), occupancy).out

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        stored_tokens = self.kept(step.past)
        keys, values = (
            step.join(self.by_age(slots.data, stored_tokens, step), stored_tokens, new)
            for slots, new in ((self.k, k), (self.v, v))
        )
        last = step.last_visible(stored_tokens, ("own", self.window))
        square = not step.past.any() and not step.padded
        sink_logits, window = self.geometry.sink_logits, self.window
        out = dense(q, keys, values, scaling, last, square, sink_logits=sink_logits, window=window)
        self.keep(keys, values, stored_tokens, step)
        return out

    def by_age(self, x: Tensor, stored_tokens: Counts, step: Step) -> Tensor | None:
        """Held slots (B, Hkv, most, D), oldest first; rows with fewer end in others."""
        most = int(stored_tokens.max())
        if not most:
            return None

        def slots() -> Tensor:
            position = (step.past - stored_tokens)[:, None] + np.arange(most)
            return step.tensor(np.minimum(position, step.past[:, None]) % self.window)

        index = step.memo(("own order", self.window), slots)
        return x.take_along_dim(index[:, None, :, None], dim=2)

    def keep(self, keys: Tensor, values: Tensor, stored_tokens: Counts, step: Step) -> None:
        """Of all tokens joined, oldest first, store the last ones in their slots."""
        after = self.kept(step.seen)
        most = int(after.max())

        def source() -> Tensor:
            slot = np.arange(most)
            # The newest position that a slot can hold; where that is none, any token will do.
            newest = step.seen[:, None] - 1
            position = newest - (newest - slot) % self.window
            joined = position - (step.past - stored_tokens)[:, None]
            return step.tensor(np.where(slot < after[:, None], joined, 0))

        index = step.memo(("own kept", self.window), source)[:, None, :, None]
        for slots, joined in ((self.k, keys), (self.v, values)):
            slots.fit(most)
            slots.data[:, :, :most] = joined.take_along_dim(index, dim=2)

    def refuse_crop(self, seen: Counts) -> InvalidValue | None:
        longest = int(seen.max(initial=0))
        if longest <= self.window:
            return None
        allowed = f"rows of at most {self.window} tokens: the model's own sliding window dropped"
        return InvalidValue("crop", longest, f"{allowed} the others")

    def crop(self, rows: Counts, seen: Counts) -> None:
        """Nothing to do while slot = position: what lies behind a row's length is not read."""

    def kept(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.window)

    def kept_positions(self, row: int, seen: int) -> Tensor:  # noqa: ARG002
        first = max(seen - self.window, 0)
        positions = torch.arange(first, seen, device=self.geometry.device)
        return positions.expand(self.geometry.Hkv, -1)
