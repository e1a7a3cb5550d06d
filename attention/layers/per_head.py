"""A layer that keeps one set of tokens per KV head, made to keep one per query head."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention.core.step import Counts, Step
from attention.layers.layer import Geometry, Layer, Method


class PerQueryHead(Layer):
    """Gives each query head a copy of its KV head's keys and values, and a set of its own.

    For comparison with code that knows no grouped heads: what is kept takes G times the memory.
    The layer that keeps one set per KV head is the method's `layer_class`.
    """

    cost_varies = True

    def __init__(self, geometry: Geometry, backend: Method) -> None:
        super().__init__(geometry, backend)
        self.inner = backend.layer_class(replace(geometry, Hkv=geometry.Hq), backend)
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

    def cost(self, seen: Counts) -> Counts:
        """Keys read by any query head of a group, summed over KV heads."""
        total: Counts = seen * 0
        for row, n in enumerate(seen.tolist()):
            heads = self.read_positions(row, n)
            groups = heads.reshape(self.geometry.Hkv, -1).sort(dim=-1).values
            first = torch.ones_like(groups, dtype=torch.bool)
            first[:, 1:] = groups[:, 1:] != groups[:, :-1]
            total[row] = int((first & (groups >= 0)).sum())
        return total

    def row_bytes(self, seen: Counts) -> Counts:
        return self.inner.row_bytes(seen)

    def kept_positions(self, row: int, seen: int) -> Tensor:
        """(Hq, kept)."""
        return self.inner.kept_positions(row, seen)

    def read_positions(self, row: int, seen: int) -> Tensor:
        return self.inner.read_positions(row, seen)
