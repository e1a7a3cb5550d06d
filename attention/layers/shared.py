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

    cut_together = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        total = (self.stored_tokens + step.new) * (step.behind > 0)
        if total.max() > self.limit:
            allowed = f"at most {self.limit} with those stored, until all layers are cut"
            raise InvalidValue("input_ids", f"columns up to {total.max()} tokens", allowed)
        return super().forward(q, k, v, scaling, step)

    def due(self, full: Counts, step: Step) -> Sequence[Cut]:
        return () if self.store is None else super().due(full, step)

    def close(self, step: Step) -> Sequence[Cut]:
        full, due = self.stored_tokens * (self.stored_tokens >= self.limit), super().due
        sizes = np.unique(full[full > 0])
        return [cut for size in sizes for cut in due(np.flatnonzero(full == size), step)]

    def shorten_together(self, cut: Cut, inputs: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
        shared = [layer for layer in layers if isinstance(layer, SharedCompressing)]
        means = [layer.worth(cut, inputs).mean(1, keepdim=True) for layer in shared]
        worth = sum(means[1:], means[0])
        return [x.keep(cut, inputs, worth.expand(-1, x.geometry.Hkv, -1)) for x in shared]
