"""Oracle of `adamas`: two bits a coordinate of turned queries and keys; the nearest are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from .company import ChoosingLayer


def hadamard(D: int) -> np.ndarray:
    """(D, D), orthonormal, in natural order; D is a power of two."""
    if D & (D - 1):
        raise ValueError(f"head size {D} is no power of two")
    signs = [[1 - 2 * ((i & j).bit_count() % 2) for j in range(D)] for i in range(D)]
    return np.array(signs) / np.sqrt(D)


class AdamasLayer(ChoosingLayer):
    """A decode query reads the current token and the budget - 1 others with the nearest codes.

    gqa: "max", "mean" or "sum" of minus the distances over the group ("max" is the least
    distance); "query_head" lets each query head choose, a KV head's read is then the union.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        dense_layers: int = 2,
        threshold_q: float = 10.0,
        threshold_k: float = 10.0,
        gqa: str = "max",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.gqa = budget, gqa
        self.threshold_q, self.threshold_k = threshold_q, threshold_k
        self.dense = self.index < dense_layers

    def step(self, q: np.ndarray) -> np.ndarray:
        if self.dense or self.n <= self.budget:
            return super().step(q)
        queries, keys = self.roped(q)
        asked = self.code(queries, self.threshold_q)
        takes: list[list[int]] = []
        for j in range(self.Hkv):
            codes = self.code(keys[j], self.threshold_k)[:-1]  # the current token needs none
            near = np.array([-np.abs(codes - asked[h]).sum(1) for h in self.group(j)])
            if self.gqa == "query_head":
                takes += [self.nearest(near[g]) for g in range(self.G)]
            else:
                takes += [self.nearest(self.reduce(near, self.gqa))] * self.G
        return self.attend(q, takes)

    def code(self, x: np.ndarray, threshold: float) -> np.ndarray:
        """(M, D) -> integers 0 to 3, (M, D)."""
        turned = x @ hadamard(x.shape[1]).astype(x.dtype)
        code = np.zeros(x.shape, dtype=np.int64)
        for edge in (-threshold, 0.0, threshold):
            code += turned > edge
            # Rounding decides on which side a value lies that is this near to an edge.
            gap = float(np.abs(turned - edge).min() / np.abs(turned).max())
            self.margin = min(self.margin, gap)
        return code

    def nearest(self, near: np.ndarray) -> list[int]:
        """Integers have no rounding, so ties are ties, and no margin is taken."""
        order = sorted(range(len(near)), key=lambda i: (-near[i], i))
        return [*sorted(order[: self.budget - 1]), self.n - 1]
