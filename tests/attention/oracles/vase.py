"""Oracle of `vase`: values of a wide range stay, others are drawn by what the last queries saw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .interval import IntervalLayer
from .random import MASK, mix, number


class VaSELayer(IntervalLayer):
    """A quarter of what stays by the range of the value, first tokens before all; the rest drawn.

    The draw is without replacement, with the attention of the last `window` queries as weights,
    and afresh at every cut.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        window: int | None = None,
        sinks: int = 4,
        kernel: int = 5,
        gqa: str = "mean",
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self.requested_window = window
        super().__init__(*args, budget=budget, window=window or 0, **kwargs)
        self.sinks, self.kernel, self.gqa, self.seed = sinks, kernel, gqa, seed

    def window_in(self, room: int) -> int:
        return (
            max(min(64, room // 4), 1) if self.requested_window is None else self.requested_window
        )

    def cut(self) -> None:
        if len(self.slots[0]) < self.budget:
            return
        p = self.prompt
        places = self.stay - self.window - p
        large = min((self.stay - p) // 4, places)
        for j in range(self.Hkv):
            slots = self.slots[j]
            candidates = len(slots) - self.window
            weights = self.weights(j, candidates)
            free = range(p, candidates)
            wide = [i for i in free if slots[i].position < self.sinks][:large]
            others = [i for i in free if slots[i].position >= self.sinks]
            ranges = np.array([slots[i].v.max() - slots[i].v.min() for i in others])
            wide += [others[i] for i in self.best(ranges, large - len(wide))]
            left = [i for i in free if i not in wide]
            luck = np.array([weights[i] / self.wait(j, slots[i].position) for i in left])
            drawn = [left[i] for i in self.best(luck, places - large, probabilities=True)]
            stay = {*range(p), *wide, *drawn, *range(candidates, len(slots))}
            self.slots[j] = [slot for i, slot in enumerate(slots) if i in stay]

    def weights(self, j: int, candidates: int) -> np.ndarray:
        """Attention among the candidates alone, (candidates,)."""
        slots = self.slots[j][:candidates]
        where = np.array([slot.position for slot in slots])
        keys = self.rope(np.array([slot.k for slot in slots]), where)
        mean = np.zeros((self.G, candidates), dtype=keys.dtype)
        for query in self.queries:
            for g, h in enumerate(self.group(j)):
                p = self.softmax(keys @ query[h] * self.scale, h)
                mean[g] += p / len(self.queries)
        half = self.kernel // 2
        smooth = np.zeros_like(mean)
        for i in range(candidates):  # beyond the ends there are zeros, which count in the mean
            smooth[:, i] = mean[:, max(i - half, 0) : i + half + 1].sum(1) / self.kernel
        return self.reduce(smooth, self.gqa)

    def wait(self, j: int, position: int) -> float:
        """An exponential waiting time; who has the largest weight / time comes first."""
        word = mix((number(self.seed, self.index, j, self.n) + position) & MASK)
        return -math.log((word + 0.5) / 2**32)
