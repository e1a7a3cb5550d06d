"""A method that is watched: which keys a decode step reads, with what weights, and others put back.

Keys and values are recorded as the watched forward computed them, before the method drops them.
Those of full attention would be others: the states of earlier tokens depend on what their steps
read.
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
class Look:
    """What one layer read in a step.

    Attributes:
        read: which positions, (H, S); H is Hkv or Hq.
        weights: probability of each position among those read, (Hkv, G, S).
    """

    read: Tensor
    weights: Tensor


class WatchedLayer(Layer):
    """The method's own layer, beside a record of every key and value it was given.

    Attributes:
        watching: whether decode steps are looked at.
        look: at the last decode step that was.
        put: positions that decode steps read in the place of others, (H, S); None for none.
        shared: whether one set serves all heads.
    """

    def __init__(self, geometry: Geometry, backend: Watched, inner: Layer) -> None:
        super().__init__(geometry, backend)
        self.inner, self.record = inner, KeepAll(geometry, Full())
        self.watching, self.shared = False, False
        self.look: Look | None = None
        self.put: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        out = self.inner.forward(q, k, v, scaling, step)
        self.record.append(k, v, step)
        if not step.decode or not self.watching:
            return out
        S, g = step.longest, self.geometry
        keys, values = (x.data[0, :, :S].double() for x in (self.record.k, self.record.v))
        scores = group(q, g.Hkv, scaling)[0].double() @ keys.transpose(1, 2)
        read = _mask(self.inner.read_positions(0, S), S)
        self.look = Look(read, self.weights(scores, read))
        if self.put is None:
            return out
        now = self.swapped(read, scores)
        self.look = Look(now, self.weights(scores, now))
        return (self.look.weights @ values).to(out.dtype).view(out.shape)

    def weights(self, scores: Tensor, read: Tensor) -> Tensor:
        """Probabilities of the positions read, (Hkv, G, S)."""
        g = self.geometry
        each = read.view(g.Hkv, -1, read.shape[-1])
        beside = None if g.grouped_sinks is None else g.grouped_sinks[..., 0]
        return softmax(scores.masked_fill(~each, float("-inf")), beside)

    def swapped(self, read: Tensor, scores: Tensor) -> Tensor:
        """What is read with `put`: of the other positions as many less, those of least weight."""
        assert self.put is not None
        weights = self.weights(scores, read)
        per_kv_head = len(read) == self.geometry.Hkv
        wanted = weights.sum(1) if per_kv_head else weights.flatten(0, 1)
        if self.shared:
            wanted = wanted.sum(0, keepdim=True).expand_as(read)
        added = self.put & ~read
        spared = ~read | self.put
        spared[:, -1] = True  # the current token
        order = wanted.masked_fill(spared, float("inf")).argsort(dim=-1, stable=True)
        rank = order.argsort(dim=-1)
        leaves = (rank < added.sum(-1, keepdim=True)) & ~spared
        return (read | added) & ~leaves

    # All else is the method's own.

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.decode(q, k, v, scaling, step)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.prefill(q, k, v, scaling, step)

    def select(self, index: Tensor) -> None:
        self.inner.select(index)
        self.record.select(index)

    def replace(self, rows: Tensor, source: Layer, source_rows: Tensor) -> None:
        assert isinstance(source, WatchedLayer)
        self.inner.replace(rows, source.inner, source_rows)
        self.record.replace(rows, source.record, source_rows)

    def clear(self, rows: Tensor) -> None:
        self.inner.clear(rows)
        self.record.clear(rows)

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
    """Behaves as another method, and its layers can be looked at; rows come one at a time.

    Args:
        inner: the method.
    """

    name: ClassVar[str] = "watched"
    source: ClassVar[str] = "a method whose steps are looked at"
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
        return False  # rows of it are never handed to full attention

    @property
    def rewindable(self) -> bool:
        return False

    def params(self) -> dict[str, Any]:
        return {"inner": self.inner.identity()}

    def build(self, geometry: Geometry) -> Layer:
        layer = WatchedLayer(geometry, self, self.inner.build(geometry))
        layer.exact_until = self.exact_until
        return layer
