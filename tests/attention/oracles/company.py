"""What oracles of methods share that look beyond one layer, or read a choice of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .layer import Layer

_last: list[list[Any]] = [[]]


def join(layer: Layer) -> list[Any]:
    """The layers of `layer`'s model, one list for all of them; they are made in order, from 0."""
    if layer.index == 0:
        _last[0] = []
    assert layer.index == len(_last[0]), "layers of a model are made in order"
    _last[0].append(layer)
    return _last[0]


class ChoosingLayer(Layer):
    """Keeps everything; a decode query may read a choice of it."""

    def roped(self, q: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """A decode query (Hq, D) -> itself and the keys of each KV head (n, D), at positions."""
        queries = self.rope(q, np.full(self.Hq, self.n - 1))
        keys = [
            self.rope(np.array([slot.k for slot in slots]), np.arange(self.n))
            for slots in self.slots
        ]
        return queries, keys

    def attend(self, q: np.ndarray, takes: Sequence[Sequence[int]]) -> np.ndarray:
        """Output where query head h reads the positions takes[h], in ascending order."""
        out = self.output(q)
        queries, keys = self.roped(q)
        for j in range(self.Hkv):
            values = np.array([slot.v for slot in self.slots[j]])
            for h in self.group(j):
                take = list(takes[h])
                logits = keys[j][take] @ queries[h] * self.scale
                out[h] = self.softmax(logits, h) @ values[take]
            self.read[j] = sorted({i for h in self.group(j) for i in takes[h]})
        return out
