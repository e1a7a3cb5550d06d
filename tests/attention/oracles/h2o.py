"""Oracle of `h2o`: heavy hitters by accumulated probability, plus the most recent tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer, Slot, softmax


class H2OLayer(Layer):
    """Keeps per KV head the `heavy` best of all but the newest recent - 1 tokens, plus those."""

    def __init__(self, *args: Any, budget: int, gqa: str = "sum", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.gqa = budget, gqa
        self.heavy = budget // 2
        self.recent = budget - budget // 2

    def exact_until(self) -> float:
        return self.budget

    def step(self, q: np.ndarray) -> np.ndarray:
        out = self.output(q)
        for j in range(self.Hkv):
            slots = self.slots[j]
            where = np.array([slot.position for slot in slots])
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            values = np.array([slot.v for slot in slots])
            for h in self.group(j):
                query = self.rope(q[h][None], where[-1:])[0]
                p = softmax(keys @ query * self.scale)
                out[h] = p @ values
                self.saw(h, slots, self.n - 1, p)
            self.read[j] = [slot.position for slot in slots]
        return out

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        del query
        for slot, p in zip(seen, probabilities, strict=True):
            slot.score[h % self.G] += p

    def cut(self) -> None:
        for j in range(self.Hkv):
            slots = self.slots[j]
            if len(slots) <= self.budget - 1:
                continue
            newest = self.recent - 1
            candidates, last = slots[: len(slots) - newest], slots[len(slots) - newest :]
            # Spec: a head's score is its sum over queries; "the chosen reduction" comes after it
            # (for sum and mean the order does not matter, for max it does).
            scores = np.array([self.reduce(slot.score, self.gqa) for slot in candidates])
            self.slots[j] = [candidates[i] for i in self.best(scores, self.heavy)] + last
