"""Oracle of `tova`: whoever the last query looked at least goes, one set a layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer, Slot


class TOVALayer(Layer):
    """Keeps after a forward the budget - 1 tokens with the largest probability of its last query.

    The probability is the mean over all query heads of the layer; nobody is exempt, and of equal
    ones the newer goes.
    """

    def __init__(self, *args: Any, budget: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = budget

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        if query == self.n - 1:
            for slot, p in zip(seen, probabilities, strict=True):
                slot.score[h % self.G] = p

    def cut(self) -> None:
        slots_held = len(self.slots[0])
        if slots_held <= self.budget - 1:
            return
        scores = np.zeros(slots_held, dtype=self.slots[0][0].score.dtype)
        for i in range(slots_held):
            scores[i] = np.mean([self.slots[j][i].score for j in range(self.Hkv)])
        p = self.prompt
        rest = self.best(scores[p:], self.budget - 1 - p, probabilities=True)
        stay = [*range(p), *(p + i for i in rest)]
        for j in range(self.Hkv):
            self.slots[j] = [self.slots[j][i] for i in stay]
