"""Oracle of `snapkv` in decode: what the last queries saw, averaged over neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np

from .interval import IntervalLayer


class SnapKVLayer(IntervalLayer):
    """Scores the probability mass of the last `window` queries, pooled; compresses at intervals."""

    def __init__(
        self,
        *args: Any,
        budget: int,
        window: int | None = None,
        kernel: int = 5,
        gqa: str = "sum",
        **kwargs: Any,
    ) -> None:
        self.requested_window = window
        super().__init__(*args, budget=budget, window=window or 0, **kwargs)
        self.kernel, self.gqa = kernel, gqa

    def window_in(self, room: int) -> int:
        return (
            max(min(32, room // 4), 1) if self.requested_window is None else self.requested_window
        )

    def scores(self, j: int, keys: np.ndarray) -> np.ndarray:
        candidates = len(keys) - self.window
        mass = np.zeros((self.G, candidates), dtype=keys.dtype)
        for back, query in enumerate(reversed(self.queries)):
            seen = keys[: len(keys) - back]  # the last tokens held are those of the last queries
            for g, h in enumerate(self.group(j)):
                mass[g] += self.softmax(seen @ query[h] * self.scale, h)[:candidates]
        total = self.reduce(mass, self.gqa)
        half = self.kernel // 2
        # Beyond the ends there are zeros, which count in the mean.
        return np.array(
            [total[max(i - half, 0) : i + half + 1].sum() / self.kernel for i in range(candidates)]
        )
