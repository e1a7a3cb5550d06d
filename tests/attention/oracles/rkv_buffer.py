"""Oracle of `rkv` with the steps between cuts as a parameter, and one choice for all layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .company import join
from .rkv import RKVLayer


class RKVBufferLayer(RKVLayer):
    """Once `budget` tokens are held, budget - buffer stay.

    shared: scores are averaged over the KV heads and added up over the layers, and one set stays
    in all of them. The last layer decides, after its own forward, so that no layer of a forward
    sees the cut of that forward.
    """

    def __init__(
        self, *args: Any, buffer: int | None = None, shared: bool = False, **kwargs: Any
    ) -> None:
        self.buffer, self.shared = buffer, shared
        super().__init__(*args, **kwargs)
        self.model = join(self)

    def work_in(self, room: int) -> None:
        if self.buffer is None:
            super().work_in(room)
            return
        self.stay = self.budget - self.buffer
        if self.buffer < 1 or self.stay <= self.window + self.budget - room:
            raise ValueError(
                f"buffer {self.buffer}: of {room} none is left besides {self.window} recent"
            )

    def cut(self) -> None:
        if not self.shared:
            super().cut()
            return
        held = len(self.slots[0])
        if self is not self.model[-1] or held < self.budget:
            return
        total = sum(layer.mean_scores() for layer in self.model)
        p = self.prompt
        rest = self.best(total[p:], self.stay - self.window - p)
        chosen = {*range(p), *(p + i for i in rest), *range(held - self.window, held)}
        for layer in self.model:
            for j in range(self.Hkv):
                layer.slots[j] = [s for i, s in enumerate(layer.slots[j]) if i in chosen]

    def mean_scores(self) -> np.ndarray:
        """Of each candidate: the mean over this layer's KV heads."""
        each = []
        for slots in self.slots:
            where = np.array([slot.position for slot in slots])
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            each.append(self.scores(len(each), keys))
        return np.mean(each, axis=0)
