"""LessIsMore: a few layers choose tokens for all heads, the layers behind them read the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    Backend,
    Choice,
    Counts,
    Geometry,
    InvalidValue,
    KeepAll,
    Layer,
    Reading,
    Selecting,
    Step,
    check_int,
    check_ints,
    check_number,
    gpu,
)


class SelectingLayer(Selecting):
    """Reads everything; every query head names its best tokens in turn."""

    on_device = hands_on = reads_all = True

    def __init__(self, geometry: Geometry, backend: LessIsMore) -> None:
        super().__init__(geometry, backend)
        rest = backend.budget - int(backend.budget * (1 - backend.recent))
        self.sinks = backend.sinks if rest > backend.sinks else 0
        self.newest = rest - self.sinks

    def choose(self, q: Tensor, step: Step) -> Choice:
        wide = self.geometry.wide  # in bfloat16 tokens would tie
        keys = self.k.data[:, :, : step.longest].to(wide)
        positions, live = self.union((q.to(wide) @ keys.mT).flatten(1, 2), step.seen_tokens)
        return Choice(positions[:, None], live[:, None])

    def pick(self, splits: gpu.Splits, counts: gpu.DeviceCounts) -> tuple[Tensor, Tensor]:
        assert splits.logits is not None
        logits, H = splits.logits.flatten(1, 2), self.geometry.Hkv
        positions, live = self.union(logits, counts.seen[: len(logits)] + 1)
        read = live.sum(-1, dtype=torch.int32)[:, None].repeat(1, H)
        return positions.int()[:, None].repeat(1, H, 1), read

    def union(self, logits: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Positions for all heads, ascending, and which of them a row has, (B, budget) each.

        Sizes follow from those of the arguments: logits (B, Hq, S), anything where a row holds
        nothing, and tokens of each row, (B,).
        """
        (_, Hq, S), end = logits.shape, seen[:, None]
        place, head = (torch.arange(n, device=logits.device) for n in (S, Hq))
        competes = (place >= self.sinks) & (place < end - self.newest)
        known = logits.masked_fill(~competes[:, None], float("-inf"))
        order = known.argsort(dim=-1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(-1, order, place.expand_as(order))
        turn = (rank * Hq + head[:, None]).amin(1)  # in which a token is first named
        turn = turn.masked_fill(~competes, -1).masked_fill(place >= end, S * Hq)
        positions = turn.topk(min(self.quota, S), largest=False).indices.sort(-1).values
        return positions, positions < end


class ReadingLayer(Reading):
    """Reads the set of the last selecting layer, in every head."""

    on_device = True

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.quota)


@dataclass(frozen=True, kw_only=True)
class LessIsMore(Backend):
    """Reads one set of tokens in all heads, which one of a few selecting layers chose.

    LessIsMore, arXiv 2508.07101; the rule of the authors' accuracy scripts, with layers picked by
    hand. Selecting layers and those before them read everything. The query heads of one name the
    tokens of their largest q.k in turn, until there are enough; first and newest always are in.

    Args:
        budget: tokens a decode query may read, current token included.
        dense_layers: first layers left dense, as the authors do; exempt from the budget.
        select: numbers of the selecting layers; by default the first one behind the
            dense ones, and the one at a third of the model's layers.
        recent: share of the budget for first and newest tokens, above 0 and at most 1.
        sinks: first tokens always read; none where they would take all of that share.
    """

    name: ClassVar[str] = "lessismore"
    source: ClassVar[str] = "LessIsMore: few layers choose for all heads (arXiv 2508.07101)"
    layer_class = SelectingLayer
    budget: int
    dense_layers: int = 2
    select: Sequence[int] | None = None
    recent: float = 0.25
    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("recent", self.recent, "a number above 0 and at most 1", above=0, most=1)
        check_int("sinks", self.sinks, 0)
        if self.select is not None:
            select = check_ints("select", self.select, self.dense_layers)
            if not select:
                raise InvalidValue("select", select, "numbers of layers, at least one")
            self._resolve("select", select)

    def choosing_layers(self, windows: Sequence[int | None]) -> tuple[int, ...]:
        third = max(len(windows) // 3, self.dense_layers)
        return self.layers_of("select", windows, (self.dense_layers, third))

    def layer(self, geometry: Geometry) -> Layer:
        select = self.choosing_layers(geometry.windows)
        if geometry.index in select:
            return SelectingLayer(geometry, self)
        if geometry.index > select[0]:
            return ReadingLayer(geometry, self)
        layer = KeepAll(geometry, self)
        layer.reads_all = True
        return layer
