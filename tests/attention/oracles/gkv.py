"""Oracle of `gkv`: attention remembered from cut to cut, minus the redundancy of keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from .interval import IntervalLayer
from .layer import softmax


class GKVLayer(IntervalLayer):
    """Scores mix * s - (1 - mix) * redundancy, each relative to its largest.

    s is the attention of the last `window` queries, or alpha times s at the cut before if larger.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        window: int = 16,
        mix: float = 0.5,
        alpha: float = 0.8,
        threshold: float = 0.5,
        gqa: str = "max",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, budget=budget, window=window, **kwargs)
        self.mix, self.alpha, self.threshold, self.gqa = mix, alpha, threshold, gqa
        self.old: list[dict[int, Any]] = [{} for _ in range(self.Hkv)]  # s by position

    def scores(self, j: int, keys: np.ndarray) -> np.ndarray:
        candidates = len(keys) - self.window
        s = self.attention(j, keys)[:candidates]
        s = s / s.max()
        positions = [slot.position for slot in self.slots[j][:candidates]]
        for i, position in enumerate(positions):
            if position in self.old[j]:
                s[i] = max(self.alpha * self.old[j][position], s[i])
        self.old[j] = dict(zip(positions, s, strict=True))  # of those that go, nobody asks again
        redundancy = softmax(self.similarity(keys).mean(0))[:candidates]
        return self.mix * s - (1 - self.mix) * redundancy / redundancy.max()

    def attention(self, j: int, keys: np.ndarray) -> np.ndarray:
        """Of every token held: mean over the last queries of the group's reduced probability."""
        mean = np.zeros(len(keys), dtype=keys.dtype)
        for back, query in enumerate(reversed(self.queries)):
            seen = keys[: len(keys) - back]  # the last tokens held are those of the last queries
            p = np.array([self.softmax(seen @ query[h] * self.scale, h) for h in self.group(j)])
            mean[: len(seen)] += self.reduce(p, self.gqa) / len(self.queries)
        return mean
