"""Oracle of `quest(rule="moments")`: pages by the mean and the spread of their keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .quest import QuestLayer


class QuestMomentsLayer(QuestLayer):
    """As `QuestLayer`, but a page is worth q.mean + factor * spread as seen by the query.

    spread="norm": the length of q times the root mean square distance of the page's keys from
    their mean. spread="coordinate": the sum over coordinates of |q| times standard deviation.
    With any other `rule` this is QuestLayer.
    """

    def __init__(
        self,
        *args: Any,
        rule: str = "",
        factor: float = 0.5,
        spread: str = "norm",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if spread not in ("norm", "coordinate"):
            raise ValueError(f"no spread {spread!r}")
        self.rule, self.factor, self.spread = rule, factor, spread

    def step(self, q: np.ndarray) -> np.ndarray:
        pages = -(-self.n // self.page)
        fit = self.budget // self.page
        if self.rule != "moments" or self.dense or pages <= fit:
            return super().step(q)
        out = self.output(q)
        now = np.array([self.n - 1])
        for j in range(self.Hkv):
            slots = self.slots[j]
            where = np.array([slot.position for slot in slots])
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            values = np.array([slot.v for slot in slots])
            queries = [self.rope(q[h][None], now)[0] for h in self.group(j)]
            rivals = pages - 1  # the last page is always read and needs no score
            scores = np.zeros((self.G, rivals), dtype=q.dtype)
            for p in range(rivals):
                inside = keys[p * self.page : (p + 1) * self.page]
                for g, query in enumerate(queries):
                    scores[g, p] = self.worth(query, inside)
            if self.gqa == "query_head":
                chosen = [self.best(scores[g], fit - 1) for g in range(self.G)]
            else:
                chosen = [self.best(self.reduce(scores, self.gqa), fit - 1)] * self.G
            union: set[int] = set()
            for g, h in enumerate(self.group(j)):
                take = [s for s in range(self.n) if s // self.page in {*chosen[g], pages - 1}]
                out[h] = self.softmax(keys[take] @ queries[g] * self.scale, h) @ values[take]
                union.update(take)
            self.read[j] = sorted(union)
        return out

    def worth(self, query: np.ndarray, inside: np.ndarray) -> float:
        """Of a page with these roped keys (page, D) to a roped query (D,)."""
        mean = inside.mean(0)
        away = inside - mean
        if self.spread == "norm":
            seen = math.sqrt((query * query).sum()) * math.sqrt((away * away).sum(1).mean())
        else:
            seen = float((np.abs(query) * np.sqrt((away * away).mean(0))).sum())
        return float(query @ mean) + self.factor * seen
