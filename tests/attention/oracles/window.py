"""Oracle of `window`: the last tokens and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer


class WindowLayer(Layer):
    """Keeps the last `budget` tokens, the current one among them."""

    def __init__(self, *args: Any, budget: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = budget

    def step(self, q: np.ndarray) -> np.ndarray:
        self.cut()  # before attending, so that the query reads budget tokens, itself included
        return super().step(q)

    def cut(self) -> None:
        for j in range(self.Hkv):
            prompt, rest = self.slots[j][: self.prompt], self.slots[j][self.prompt :]
            self.slots[j] = prompt + rest[-(self.budget - self.prompt) :]
