"""Oracle of `h2o`: heavy hitters by accumulated probability, plus the most recent tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer, Slot


class H2OLayer(Layer):
    """Keeps per KV head the `heavy` best of all but the newest recent - 1 tokens, plus those.

    positions="rolled" counts distances inside the cache. normalise="age" divides a score by the
    number of queries that could see the token. decay shrinks all scores before each query's
    probabilities are added. Without score_from_prefill a prompt's queries leave no score.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        heavy: int | None = None,
        gqa: str = "sum",
        positions: str = "absolute",
        score_from_prefill: bool = True,
        normalise: str | None = None,
        decay: float = 1.0,
        dense_layers: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.gqa = budget, gqa
        self.heavy = budget // 2 if heavy is None else heavy
        self.recent = budget - self.heavy
        self.positions, self.normalise, self.decay = positions, normalise, decay
        self.score_from_prefill = score_from_prefill
        self.dense = self.index < dense_layers
        self.decoding = False

    def exact_until(self) -> float:
        return self.budget

    def key_positions(self, slots: list[Slot]) -> np.ndarray:
        if self.positions == "rolled":
            return np.arange(len(slots))
        return super().key_positions(slots)

    def step(self, q: np.ndarray) -> np.ndarray:
        self.decoding = True
        out = self.output(q)
        for j in range(self.Hkv):
            slots = self.slots[j]
            where = self.key_positions(slots)
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            values = np.array([slot.v for slot in slots])
            for h in self.group(j):
                query = self.rope(q[h][None], where[-1:])[0]
                p = self.softmax(keys @ query * self.scale, h)
                out[h] = p @ values
                self.saw(h, slots, self.n - 1, p)
            self.read[j] = [slot.position for slot in slots]
        self.decoding = False
        return out

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        del query
        if not self.decoding and not self.score_from_prefill:
            return
        for slot, p in zip(seen, probabilities, strict=True):
            slot.score[h % self.G] = slot.score[h % self.G] * self.decay + p

    def cut(self) -> None:
        if self.dense:
            return
        for j in range(self.Hkv):
            slots = self.slots[j]
            if len(slots) <= self.budget - 1:
                continue
            newest = self.recent - 1
            candidates, last = slots[: len(slots) - newest], slots[len(slots) - newest :]
            # Spec: a head's score is its sum over queries; "the chosen reduction" comes after it
            # (for sum and mean the order does not matter, for max it does).
            scores = np.array([self.reduce(slot.score, self.gqa) for slot in candidates])
            if self.normalise == "age":
                scores /= np.array([self.n - slot.position for slot in candidates])
            self.slots[j] = [candidates[i] for i in self.best(scores, self.heavy)] + last
