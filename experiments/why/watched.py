"""A method that is watched: which keys a decode step reads and with what weights.

Keys and values are recorded as the watched forward computed them, before the method drops them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from attention.contract import (
    Backend,
    Counts,
    Full,
    Geometry,
    KeepAll,
    Layer,
    Step,
    group,
    softmax,
)


@dataclass(frozen=True)
class StepReads:
    """What one layer read in a step.

    Attributes:
        read: which positions, (H, S); H is Hkv or Hq.
        weights: probability of each position among those read, (Hkv, G, S).
    """

    read: Tensor
    weights: Tensor


class WatchedLayer(Layer):
    """The method's own layer, next to a record of every key and value that it was given.

    Attributes:
        watching: whether decode steps are recorded.
        reads_of_step: of the last decode step that was.
        added: positions that the next decode step reads in the place of others, (H, S), or None.
        shared: whether all heads read the same positions.
    """

    watching = False
    reads_of_step: StepReads | None = None
    added: Tensor | None = None
    shared = False

    def __init__(self, geometry: Geometry, backend: Watched, inner: Layer) -> None:
        super().__init__(geometry, backend)
        self.inner, self.record = inner, KeepAll(geometry, Full())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        out = self.inner.forward(q, k, v, scaling, step)
        self.record.append(k, v, step)
        if not (step.decode and self.watching):
            return out
        S, g = step.longest, self.geometry
        keys, values = (x.data[0, :, :S].double() for x in (self.record.k, self.record.v))
        scores = group(q, g.Hkv, scaling)[0].double() @ keys.transpose(1, 2)
        read = _mask(self.inner.read_positions(0, S), S)
        if self.added is not None:
            read = self._swapped(read, self.added, self._weights(scores, read))
        self.reads_of_step = StepReads(read, self._weights(scores, read))
        if self.added is None:
            return out
        return (self.reads_of_step.weights @ values).to(out.dtype).view(out.shape)

    def _weights(self, scores: Tensor, read: Tensor) -> Tensor:
        """Probabilities of the positions read, (Hkv, G, S)."""
        g = self.geometry
        sinks = None if g.grouped_sinks is None else g.grouped_sinks[..., 0]
        unread = ~read.view(g.Hkv, -1, read.shape[-1])
        return softmax(scores.masked_fill(unread, float("-inf")), sinks)

    def _swapped(self, read: Tensor, added: Tensor, weights: Tensor) -> Tensor:
        """`read` with `added`, less as many other positions, those of least weight."""
        per_kv_head = len(read) == self.geometry.Hkv
        worth = weights.sum(1) if per_kv_head else weights.flatten(0, 1)
        if self.shared:
            worth = worth.sum(0, keepdim=True).expand_as(read)
        fixed = ~read | added
        fixed[:, -1] = True  # the current token
        order = worth.masked_fill(fixed, float("inf")).argsort(dim=-1, stable=True)
        count = (added & ~read).sum(-1, keepdim=True)
        return (read | added) & ~((order.argsort(dim=-1) < count) & ~fixed)

    # All else is the method's own.

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.decode(q, k, v, scaling, step)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.prefill(q, k, v, scaling, step)

    def copied(self, index: Tensor) -> Self:
        twin = copy.copy(self)
        twin.inner, twin.record = self.inner.copied(index), self.record.copied(index)
        return twin

    def kept(self, seen: Counts) -> Counts:
        return self.inner.kept(seen)

    def reads(self, seen: Counts) -> Counts:
        return self.inner.reads(seen)

    def kept_positions(self, row: int, seen: int) -> Tensor:
        return self.inner.kept_positions(row, seen)

    def read_positions(self, row: int, seen: int) -> Tensor:
        return self.inner.read_positions(row, seen)


def _mask(positions: Tensor, S: int) -> Tensor:
    """Lists of positions, -1 for none, as (H, S) of which are in them."""
    mask = torch.zeros(len(positions), S + 1, dtype=torch.bool, device=positions.device)
    mask.scatter_(1, positions.masked_fill(positions < 0, S), value=True)
    return mask[:, :S]


@dataclass(frozen=True, kw_only=True)
class Watched(Backend):
    """Behaves as another method and records what its layers read, in a batch of one row.

    Args:
        inner: the method.
    """

    name: ClassVar[str] = "watched"
    source: ClassVar[str] = "a method whose steps are watched"
    layer_class = WatchedLayer
    inner: Backend
    budget: int | None = None

    def __post_init__(self) -> None:
        self._resolve("budget", self.inner.budget)
        self._resolve("dense_layers", self.inner.dense_layers)
        super().__post_init__()

    @property
    def exact_until(self) -> float:
        return self.inner.exact_until

    @property
    def turns_keys(self) -> bool:
        return self.inner.turns_keys

    @property
    def keeps_all(self) -> bool:
        return False  # full attention never takes over its rows

    @property
    def rewindable(self) -> bool:
        return False

    def params(self) -> dict[str, Any]:
        return {"inner": self.inner.identity()}

    def build(self, geometry: Geometry) -> Layer:
        layer = WatchedLayer(geometry, self, self.inner.build(geometry))
        layer.exact_until = self.exact_until
        return layer
