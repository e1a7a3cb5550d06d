"""Base class of methods that drop the same tokens in all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from attention.core.step import Counts, Cut, Step
from attention.errors import InvalidValue
from attention.layers.compressing import Compressing
from attention.layers.layer import Layer


class SharedCompressing(Compressing):
    """Layers and KV heads hold the same tokens, those of the largest sum of their worth.

    What slots are worth is averaged over the KV heads of a layer and summed over layers. All are
    cut behind the last layer of a forward, so that none of that forward sees it.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        total = (self.stored_tokens + step.new) * (step.behind > 0)
        if not step.decode and total.max() > self.limit:
            row = int(total.argmax())
            allowed = (
                f"at most {self.limit - int(self.stored_tokens[row])} before all layers are cut"
            )
            raise InvalidValue("input_ids", f"{int(step.new[row])} tokens at once", allowed)
        return super().forward(q, k, v, scaling, step)

    def due(self, full: Counts, step: Step) -> Sequence[Cut]:
        return () if self.store is None else super().due(full, step)

    def close(self, step: Step, layers: Sequence[Layer]) -> None:
        shared = [layer for layer in layers if isinstance(layer, SharedCompressing)]
        if self is not shared[0]:
            return
        held = self.stored_tokens
        for size in np.unique(held[held >= self.limit]):
            rows = np.flatnonzero(held == size)
            plans = [Compressing.due(layer, rows, step) for layer in shared]
            for cut in plans[0]:  # all are the same
                before = self.shorten_together(cut, step.inputs(cut), shared)
                for layer, positions in zip(shared, before, strict=True):
                    layer.before |= zip(cut.rows.tolist(), positions, strict=True)
        for layer in shared:
            layer.trim()

    def shorten_together(self, cut: Cut, inputs: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
        shared = [layer for layer in layers if isinstance(layer, SharedCompressing)]
        worth = sum(layer.worth(cut, inputs).mean(1, keepdim=True) for layer in shared)
        heads = [layer.geometry.Hkv for layer in shared]
        return [
            layer.keep(cut, inputs, worth.expand(-1, H, -1))
            for layer, H in zip(shared, heads, strict=True)
        ]
