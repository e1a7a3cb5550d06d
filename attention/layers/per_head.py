"""A layer that keeps one set of tokens per KV head, made to keep one per query head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attention.core import devices
from attention.core.step import Counts, Step
from attention.layers.evicting import Evicting
from attention.layers.layer import Geometry, Layer, Method


class PerQueryHead(Layer):
    """Gives each query head a copy of its KV head's keys and values, and a set of its own.

    For comparison with code that knows no grouped heads: what is kept takes G times the memory.
    The layer that keeps one set per KV head is the method's `layer_class`, an `Evicting`.
    """

    cost_varies = True

    def __init__(self, geometry: Geometry, backend: Method) -> None:
        super().__init__(geometry, backend)
        inner = backend.layer_class(replace(geometry, Hkv=geometry.Hq), backend)
        assert isinstance(inner, Evicting)
        self.inner = inner
        # Rows are selected and replaced in one place.
        self.state = self.inner.state

    def repeated(self, x: Tensor) -> Tensor:
        """(B, Hkv, T, D) to (B, Hq, T, D)."""
        return x.repeat_interleave(self.geometry.G, dim=1)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.decode(q, self.repeated(k), self.repeated(v), scaling, step)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.prefill(q, self.repeated(k), self.repeated(v), scaling, step)

    def kept(self, seen: Counts) -> Counts:
        return self.inner.kept(seen)

    def reads(self, seen: Counts) -> Counts:
        return self.inner.reads(seen)

    def measured(self, seen: Counts) -> Tensor:
        """What any query head of a group reads costs once, summed over KV heads."""
        position = self.inner.position.data
        heads = position.view(len(position), self.geometry.Hkv, -1).sort(dim=-1).values
        first = torch.ones_like(heads, dtype=torch.bool)
        first[:, :, 1:] = heads[:, :, 1:] != heads[:, :, :-1]
        cost = (first & (heads >= 0)).sum((1, 2)).double()
        told = np.stack((self.reads(seen), self.mean_reads(seen)))
        return torch.cat((devices.put(told, cost.device, cost.dtype), cost[None]))

    def cost(self, seen: Counts) -> Counts:
        total: Counts = self.measured(seen)[2].long().cpu().numpy()
        return total

    def row_bytes(self, seen: Counts) -> Counts:
        return self.inner.row_bytes(seen)

    def kept_positions(self, row: int, seen: int) -> Tensor:
        """(Hq, kept)."""
        return self.inner.kept_positions(row, seen)

    def read_positions(self, row: int, seen: int) -> Tensor:
        return self.inner.read_positions(row, seen)
