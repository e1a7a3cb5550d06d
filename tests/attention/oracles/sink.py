"""Oracle of `sink`: the first tokens and the last ones; distances counted inside the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer, Slot


class SinkLayer(Layer):
    """Keeps `sinks` first and budget - sinks last tokens.

    positions="cache": every kept key is roped anew at its index in the cache and the query at the
    last index. positions="absolute": everything stays where it was in the text.
    """

    def __init__(
        self, *args: Any, budget: int, sinks: int = 4, positions: str = "cache", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.sinks, self.positions = budget, sinks, positions

    def key_positions(self, slots: list[Slot]) -> np.ndarray:
        if self.positions == "cache":
            return np.arange(len(slots))
        return super().key_positions(slots)

    def step(self, q: np.ndarray) -> np.ndarray:
        self.cut()  # before attending, so that the query reads budget tokens, itself included
        out = self.output(q)
        for j in range(self.Hkv):
            slots = self.slots[j]
            where = self.key_positions(slots)
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            values = np.array([slot.v for slot in slots])
            for h in self.group(j):
                query = self.rope(q[h][None], where[-1:])[0]
                out[h] = self.softmax(keys @ query * self.scale, h) @ values
            self.read[j] = [slot.position for slot in slots]
        return out

    def cut(self) -> None:
        # Spec: "kept positions: the first 4 and the last b - 4", so b tokens stay, not b - 1.
        first = max(self.sinks, self.prompt)
        window = self.budget - first
        for j in range(self.Hkv):
            if len(self.slots[j]) > self.budget:
                self.slots[j] = self.slots[j][:first] + self.slots[j][-window:]
