"""Oracle of `oracle`: the true best tokens of each query, a fixed number or a share of the mass."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer


class TrueTopLayer(Layer):
    """Keeps everything; a decode query reads the current token and the most probable others.

    Either `budget` tokens, or as many as hold `top_p` of the mass. One set per KV head, ranked by
    the reduction over its group of the softmax over all tokens.
    """

    def __init__(
        self,
        *args: Any,
        budget: int | None = None,
        top_p: float | None = None,
        gqa: str = "sum",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if (budget is None) == (top_p is None):
            raise ValueError("one of budget and top_p")
        self.budget, self.top_p, self.gqa = budget, top_p, gqa

    def step(self, q: np.ndarray) -> np.ndarray:
        out = self.output(q)
        now = np.array([self.n - 1])
        for j in range(self.Hkv):
            slots = self.slots[j]
            keys = self.rope(np.array([slot.k for slot in slots]), np.arange(self.n))
            values = np.array([slot.v for slot in slots])
            queries = [self.rope(q[h][None], now)[0] for h in self.group(j)]
            heads = list(zip(queries, self.group(j), strict=True))
            p = np.array([self.softmax(keys @ query * self.scale, h) for query, h in heads])
            w = self.reduce(p, self.gqa)
            others = self.best_mass(w) if self.budget is None else self.best_count(w[:-1])
            take = [*others, self.n - 1]
            for query, h in heads:
                out[h] = self.softmax(keys[take] @ query * self.scale, h) @ values[take]
            self.read[j] = take
        return out

    def best_count(self, w: np.ndarray) -> list[int]:
        assert self.budget is not None
        return self.best(w, self.budget - 1, probabilities=True)

    def best_mass(self, w: np.ndarray) -> list[int]:
        """The most probable others until, the current token included, top_p is reached."""
        assert self.top_p is not None
        w = w / w.sum()
        count, mass = 0, w[-1]
        order = sorted(range(self.n - 1), key=lambda i: (-w[i], i))
        self.margin = min(self.margin, abs(float(mass) - self.top_p))
        while mass < self.top_p and count < len(order):
            mass += w[order[count]]
            count += 1
            self.margin = min(self.margin, abs(float(mass) - self.top_p))
        return self.best(w[:-1], count, probabilities=True)
