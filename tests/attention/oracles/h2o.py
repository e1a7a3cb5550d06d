"""Oracle of `h2o`: heavy hitters by accumulated probability, plus the most recent tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer, Slot


class H2OLayer(Layer):
    """Keeps per KV head the `heavy` best of all but the newest recent - 1 tokens, plus those.

    Without score_from_prefill a prompt's queries leave no score. gqa="query_head": each query head
    keeps its own of its KV head's slots, by its own score; the lists of `kept` and `read` are then
    those of query heads.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        heavy: int | None = None,
        gqa: str = "sum",
        score_from_prefill: bool = True,
        dense_layers: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.gqa = budget, gqa
        self.heavy = heavy
        self.score_from_prefill = score_from_prefill
        self.dense = self.index < dense_layers
        self.decoding = False
        self.own = gqa == "query_head" and not self.dense
        self.lost: list[set[int]] = [set() for _ in range(self.Hq)]  # positions, where `own`

    def sets(self) -> list[tuple[range, list[Slot]]]:
        if not self.own:
            return super().sets()
        return [
            (range(h, h + 1), [s for s in self.slots[j] if s.position not in self.lost[h]])
            for j in range(self.Hkv)
            for h in self.group(j)
        ]

    def kept(self) -> list[list[int]]:
        return [[slot.position for slot in slots] for _, slots in self.sets()]

    def step(self, q: np.ndarray) -> np.ndarray:
        self.decoding = True
        out = self.output(q)
        for heads, slots in self.sets():
            where = self.key_positions(slots)
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            values = np.array([slot.v for slot in slots])
            for h in heads:
                query = self.rope(q[h][None], where[-1:])[0]
                p = self.softmax(keys @ query * self.scale, h)
                out[h] = p @ values
                self.saw(h, slots, self.n - 1, p)
        self.read = [[slot.position for slot in slots] for _, slots in self.sets()]
        self.decoding = False
        return out

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        del query
        if not self.decoding and not self.score_from_prefill:
            return
        for slot, p in zip(seen, probabilities, strict=True):
            slot.score[h % self.G] += p

    def cut(self) -> None:
        if self.dense:
            return
        for heads, slots in self.sets():
            if len(slots) <= self.budget - 1:
                continue
            room = self.budget - self.prompt
            heavy = room // 2 if self.heavy is None else self.heavy
            newest = room - heavy - 1
            prompt, slots = slots[: self.prompt], slots[self.prompt :]
            candidates, last = slots[: len(slots) - newest], slots[len(slots) - newest :]
            # Spec: a head's score is its sum over queries; "the chosen reduction" comes after it
            # (for sum and mean the order does not matter, for max it does).
            scores = np.array([self.score(slot, heads) for slot in candidates])
            stay = prompt + [candidates[i] for i in self.best(scores, heavy)] + last
            if self.own:
                self.lost[heads[0]] |= {s.position for s in slots} - {s.position for s in stay}
            else:
                self.slots[heads[0] // self.G] = stay

    def score(self, slot: Slot, heads: range) -> np.floating[Any]:
        """What a slot is worth to these query heads."""
        if self.own:
            return slot.score[heads[0] % self.G]
        return self.reduce(slot.score, self.gqa)
