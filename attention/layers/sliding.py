"""A layer in which the model itself slides a window: no method's, and exempt from the budget."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from attention.core.step import Counts, Step
from attention.engines import gpu
from attention.errors import InvalidValue
from attention.layers.layer import Geometry, KeepAll, Method
from attention.layers.ring import Ring


class DraftedLayer(KeepAll):
    """The same where drafts may be taken back: every token stays, and the window is read."""

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.prefill(q, k, v, scaling, step)

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.geometry.model_window or 0)

    def read_positions(self, row: int, seen: int) -> Tensor:
        return self.kept_positions(row, seen)[:, -(self.geometry.model_window or 0) :]


class SlidingLayer(Ring):
    """The model's own attention to the last `window` tokens, which stay in a ring.

    Unlike in `window` a prompt's queries see no more than the window either.
    """

    on_device = True

    def __init__(self, geometry: Geometry, backend: Method) -> None:
        assert geometry.model_window is not None
        super().__init__(geometry, backend, geometry.model_window)

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        first = self.number(counts, "nothing stays")
        return self.store_of(self.k, self.v, counts.seen, self.limit, "ring", first=first)

    def refuse_crop(self, seen: Counts) -> InvalidValue | None:
        longest = int(seen.max(initial=0))
        if longest <= self.limit:
            return None
        allowed = f"rows of at most {self.limit} tokens: the model's own sliding window dropped"
        return InvalidValue("crop", longest, f"{allowed} the others")

    def crop(self, rows: Counts, seen: Counts) -> None:
        """Nothing to do while slot = position: what lies behind a row's length is not read."""
