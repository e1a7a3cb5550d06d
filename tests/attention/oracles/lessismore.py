"""Oracle of `lessismore`: a few layers choose for all heads, those behind them read the choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from .company import ChoosingLayer, join


class LessIsMoreLayer(ChoosingLayer):
    """Layers in `select` read everything and choose `budget` tokens; later ones read those.

    The share `recent` of them are the newest tokens and, out of the same share, the first `sinks`;
    the others come from all query heads, who name their best in turn.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        dense_layers: int = 2,
        select: tuple[int, ...] | None = None,
        recent: float = 0.25,
        sinks: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.dense_layers, self.select = budget, dense_layers, select
        self.middle = int(budget * (1 - recent))
        rest = budget - self.middle
        if rest < 1:
            raise ValueError("no place for the current token")
        self.sinks = sinks if rest > sinks else 0
        self.newest = rest - self.sinks
        self.model = join(self)
        self.choice: list[int] = []

    def selecting(self) -> tuple[int, ...]:
        if self.select is not None:
            return self.select
        third = len(self.model) // 3
        return (self.dense_layers, third) if third > self.dense_layers else (self.dense_layers,)

    def step(self, q: np.ndarray) -> np.ndarray:
        before = [i for i in self.selecting() if i <= self.index]
        if self.n <= self.budget or not before:
            return super().step(q)
        if before[-1] == self.index:
            self.choice = self.choose(q)
            return super().step(q)
        return self.attend(q, [self.model[before[-1]].choice] * self.Hq)

    def choose(self, q: np.ndarray) -> list[int]:
        queries, keys = self.roped(q)
        end = self.n - self.newest
        rivals = range(self.sinks, end)
        scores = np.array([(keys[h // self.G] @ queries[h])[rivals] for h in range(self.Hq)])
        ranked = [sorted(range(len(rivals)), key=lambda i, s=s: (-s[i], i)) for s in scores]
        named: dict[int, None] = {}
        rank = 0
        while len(named) < self.middle:
            for order in ranked:
                if len(named) < self.middle:
                    named[rivals[order[rank]]] = None
            rank += 1
        if rank:
            self.worry(scores, ranked, rank - 1)
        return [*range(self.sinks), *sorted(named), *range(end, self.n)]

    def worry(self, scores: np.ndarray, ranked: list[list[int]], last: int) -> None:
        """Takes the margin where the last row of named tokens begins and ends."""
        for s, order in zip(scores, ranked, strict=True):
            for i in (last - 1, last):
                if i >= 0 and i + 1 < len(order):
                    gap = float((s[order[i]] - s[order[i + 1]]) / np.abs(s).max())
                    self.margin = min(self.margin, gap)
