"""Oracle of `kascade`: anchor layers choose per KV head, those behind them read by a head map."""

from __future__ import annotations

from typing import Any

import numpy as np

from .company import ChoosingLayer, join


class KascadeLayer(ChoosingLayer):
    """Anchors rank by probability and read their own choice; layer 0 is one, but reads everything.

    maps[layer][j]: whose choice KV head j of that layer reads, among the heads of the last anchor.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        anchors: tuple[int, ...] | None = None,
        maps: tuple[tuple[int, ...], ...] | None = None,
        gqa: str = "sum",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.anchors, self.maps, self.gqa = budget, anchors, maps, gqa
        self.model = join(self)
        self.chosen: list[list[int]] = []  # by KV head, where this is an anchor

    def all_anchors(self) -> list[int]:
        if self.anchors is not None:
            return sorted({0, *self.anchors})
        layers = len(self.model)
        count = min(layers, max(2, -(-layers // 7)))
        return [i * layers // count for i in range(count)]

    def step(self, q: np.ndarray) -> np.ndarray:
        if self.n <= self.budget:
            return super().step(q)
        anchor = max(i for i in self.all_anchors() if i <= self.index)
        if anchor == self.index:
            self.chosen = self.choose(q)
            takes = self.chosen
        else:
            of = range(self.Hkv) if self.maps is None else self.maps[self.index]
            takes = [self.model[anchor].chosen[of[j]] for j in range(self.Hkv)]
        if self.index == 0:
            return super().step(q)
        return self.attend(q, [takes[h // self.G] for h in range(self.Hq)])

    def choose(self, q: np.ndarray) -> list[list[int]]:
        """For each KV head the current token and the budget - 1 most probable others."""
        queries, keys = self.roped(q)
        chosen = []
        for j in range(self.Hkv):
            p = [self.softmax(keys[j] @ queries[h] * self.scale, h) for h in self.group(j)]
            w = self.reduce(np.array(p), self.gqa)[:-1]
            chosen.append([*self.best(w, self.budget - 1, probabilities=True), self.n - 1])
        return chosen
