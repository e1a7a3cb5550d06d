"""Oracle of the control `uniform`: over budget, every token gets the same weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer


class UniformLayer(Layer):
    """Keeps and reads everything; beyond the budget a decode query gets the mean of all values."""

    def __init__(self, *args: Any, budget: int, dense_layers: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.dense = budget, self.index < dense_layers

    def step(self, q: np.ndarray) -> np.ndarray:
        out = super().step(q)
        if self.dense or self.n <= self.budget:
            return out
        for h in range(self.Hq):
            uniform = self.softmax(np.zeros(self.n, dtype=q.dtype), h)
            out[h] = uniform @ np.array([slot.v for slot in self.slots[h // self.G]])
        return out
