"""Oracle of `quest`: pages of keys, an upper bound of q.k a page, the best pages are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer


class QuestLayer(Layer):
    """Keeps everything; a decode query reads the last page and the best budget/page - 1 others.

    gqa: "sum", "mean" or "max" of the bounds over the group give one set per KV head;
    "query_head" lets each query head choose, and a KV head's read is then the union.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        page: int = 16,
        dense_layers: int = 2,
        gqa: str = "sum",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.page, self.gqa = budget, page, gqa
        self.dense = self.index < dense_layers

    def step(self, q: np.ndarray) -> np.ndarray:
        pages = -(-self.n // self.page)
        fit = self.budget // self.page
        # Spec: "dense while all pages fit"; the last page counts whole although it may be partial.
        if self.dense or pages <= fit:
            return super().step(q)
        out = self.output(q)
        now = np.array([self.n - 1])
        for j in range(self.Hkv):
            slots = self.slots[j]
            where = np.array([slot.position for slot in slots])
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            values = np.array([slot.v for slot in slots])
            queries = [self.rope(q[h][None], now)[0] for h in self.group(j)]
            rivals = pages - 1  # the last page is always read and needs no bound
            bounds = np.zeros((self.G, rivals), dtype=q.dtype)
            for p in range(rivals):
                inside = keys[p * self.page : (p + 1) * self.page]
                for g, query in enumerate(queries):
                    bounds[g, p] = self.worth(query, inside)
            if self.gqa == "query_head":
                chosen = [self.best(bounds[g], fit - 1) for g in range(self.G)]
            else:
                chosen = [self.best(self.reduce(bounds, self.gqa), fit - 1)] * self.G
            union: set[int] = set()
            for g, h in enumerate(self.group(j)):
                take = [s for s in range(self.n) if s // self.page in {*chosen[g], pages - 1}]
                out[h] = self.softmax(keys[take] @ queries[g] * self.scale, h) @ values[take]
                union.update(take)
            self.read[j] = sorted(union)
        return out

    def worth(self, query: np.ndarray, inside: np.ndarray) -> float:
        """Of a page with these roped keys (page, D) to a roped query (D,)."""
        return float(np.maximum(query * inside.max(0), query * inside.min(0)).sum())
