"""Oracle of `rkv`: attention of the last queries minus the redundancy of keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from .interval import IntervalLayer
from .layer import softmax


class RKVLayer(IntervalLayer):
    """Scores mix * attention - (1 - mix) * redundancy; compresses every so many tokens."""

    def __init__(
        self,
        *args: Any,
        budget: int,
        window: int = 8,
        mix: float = 0.1,
        kernel: int = 7,
        threshold: float = 0.5,
        gqa: str = "max",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, budget=budget, window=window, **kwargs)
        self.mix, self.kernel, self.threshold, self.gqa = mix, kernel, threshold, gqa

    def scores(self, j: int, keys: np.ndarray) -> np.ndarray:
        candidates = len(keys) - self.window
        attention = self.attention(j, keys[:candidates])
        redundancy = softmax(self.similarity(keys).mean(0))[:candidates]
        return self.mix * attention - (1 - self.mix) * redundancy

    def attention(self, j: int, keys: np.ndarray) -> np.ndarray:
        """Of each candidate: mean over the last queries, then the maximum of its neighbourhood."""
        mean = np.zeros(len(keys), dtype=keys.dtype)
        for query in self.queries:
            logits = np.array([keys @ query[h] * self.scale for h in self.group(j)])
            if self.sink_logits is not None:  # one more key, which is no candidate
                logits = np.column_stack([logits, self.sink_logits[list(self.group(j))]])
            p = softmax(self.reduce(logits, self.gqa))
            mean += p[: len(keys)] / len(self.queries)
        half = self.kernel // 2
        return np.array([mean[max(i - half, 0) : i + half + 1].max() for i in range(len(keys))])
