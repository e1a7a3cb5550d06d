"""Oracle of `caote`: how far the attention's output moves when a token goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .snapkv import SnapKVLayer


class CAOTELayer(SnapKVLayer):
    """Scores a / (1 - a) * |v - output|, where a is the share in what `snapkv` scores.

    fast: the mean of the candidates' values stands for the output.
    """

    def __init__(self, *args: Any, fast: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fast = fast

    def scores(self, j: int, keys: np.ndarray) -> np.ndarray:
        mass = super().scores(j, keys)
        total = mass.sum()
        a = mass / total if total > 0 else np.zeros_like(mass)
        values = np.array([slot.v for slot in self.slots[j][: len(mass)]])
        output = values.mean(0) if self.fast else a @ values
        away = np.sqrt(((values - output) ** 2).sum(1))
        odds = np.minimum(a, 1 - 1e-6)
        return odds / (1 - odds) * away
