"""What the oracles of `rkv` and `snapkv` share: a cut every so many tokens, by the last queries."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layer import Layer


class IntervalLayer(Layer):
    """Once `budget` tokens are held, keeps the last `window` and the best others.

    budget - interval stay, interval = min(128, budget // 4). A method gives the scores of the
    candidates, which are all held tokens but the last `window`.
    """

    def __init__(self, *args: Any, budget: int, window: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.window = budget, window
        self.work_in(budget)
        self.queries: list[np.ndarray] = []  # (Hq, D), at their positions; the last `window` ones

    def forward(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self.n == 0 and self.keep_prompt:
            self.work_in(self.budget - self.staying(len(q)))
        for t in range(len(q)):
            self.queries.append(self.rope(q[t], np.full(self.Hq, self.n + t)))
        self.queries = self.queries[-self.window :]
        return super().forward(q, k, v)

    def cut(self) -> None:
        if len(self.slots[0]) < self.budget:
            return
        for j in range(self.Hkv):
            candidates = len(self.slots[j]) - self.window
            where = np.array([slot.position for slot in self.slots[j]])
            keys = self.rope(np.array([slot.k for slot in self.slots[j]]), where)
            p = self.prompt
            rest = self.best(self.scores(j, keys)[p:], self.stay - self.window - p)
            chosen = {*range(p), *(p + i for i in rest)}
            self.slots[j] = [
                slot for i, slot in enumerate(self.slots[j]) if i in chosen or i >= candidates
            ]

    def work_in(self, room: int) -> None:
        """Window and what stays, where the prompt leaves `room` of the budget."""
        self.window = self.window_in(room)
        self.stay = self.budget - min(128, room // 4)
        if self.stay <= self.window + self.budget - room or self.stay == self.budget:
            raise ValueError(f"budget {room} is too small for a window of {self.window}")

    def window_in(self, room: int) -> int:
        """The window where the budget is `room` tokens."""
        del room
        return self.window

    def scores(self, j: int, keys: np.ndarray) -> np.ndarray:
        """Of each candidate (held - window,) of KV head j; keys (held, D), roped, by age."""
        raise NotImplementedError

    def similarity(self, keys: np.ndarray) -> np.ndarray:
        """Cosines (held, held), zero for a token itself and its newest one above `threshold`."""
        norms = np.sqrt((keys * keys).sum(1, keepdims=True))
        unit = keys / (norms + keys.dtype.type(1e-8))
        cosine = unit @ unit.T
        for i in range(len(keys)):
            cosine[i, i] = 0
        for row in cosine:
            gap = float(np.abs(row - self.threshold).min())
            self.margin = min(self.margin, gap)
            similar = [i for i in range(len(keys)) if row[i] > self.threshold]
            if similar:
                row[similar[-1]] = 0
        return cosine
