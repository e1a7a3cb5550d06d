"""Oracle of `lazy` (LazyEviction): when a token was last looked at, and its longest such gap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .layer import Layer, Slot


def halves(since: int, longest: int) -> tuple[float, float]:
    """The two parts of a token's importance, in float64 whatever the model's dtype.

    `since` steps ago somebody looked at it last; the longest gap so far was `longest`.
    """
    x = 1 + since / (longest + 1e-5)
    soon = 2 * math.exp(-x) / (1 + math.exp(-x))  # underflows to zero
    often = 0.0 if longest == 0 else 2 / (1 + math.exp(min(longest - 1, 700)))
    return soon, often


class LazyLayer(Layer):
    """Once `budget` tokens are held, keeps the newest `window` and the most important others.

    `window` fewer than the budget stay. Somebody looks at a token where the reduction over its
    group of a decode query's probabilities reaches alpha; a prompt's queries are not watched.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        window: int | None = None,
        alpha: float = 1e-4,
        gqa: str = "max",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.requested, self.alpha, self.gqa = budget, window, alpha, gqa
        self.steps = 0  # decode queries so far
        # By position held: the step of the last look, and the longest gap between looks.
        self.looks: list[dict[int, tuple[int, int]]] = [{} for _ in range(self.Hkv)]
        self.work_in(budget)

    def work_in(self, room: int) -> None:
        self.window = min(128, room // 4) if self.requested is None else self.requested
        if self.window < 1 or room - 2 * self.window < 1:
            raise ValueError(f"budget {room} is too small for a window of {self.window}")

    def forward(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self.n == 0 and self.keep_prompt:
            self.work_in(self.budget - len(q))
        born = self.steps  # a decoded token is born one step before its own query looks
        for looks in self.looks:
            looks.update(dict.fromkeys(range(self.n, self.n + len(q)), (born, 0)))
        return super().forward(q, k, v)

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        del query
        for slot, p in zip(seen, probabilities, strict=True):
            slot.score[h % self.G] = p

    def step(self, q: np.ndarray) -> np.ndarray:
        out = super().step(q)
        self.steps += 1
        for slots, looks in zip(self.slots, self.looks, strict=True):
            for slot in slots:
                p = float(self.reduce(slot.score, self.gqa))
                self.margin = min(self.margin, abs(p / self.alpha - 1))
                if p >= self.alpha:
                    last, longest = looks[slot.position]
                    looks[slot.position] = self.steps, max(longest, self.steps - last)
        return out

    def cut(self) -> None:
        if len(self.slots[0]) < self.budget:
            return
        for j, slots in enumerate(self.slots):
            rivals = slots[self.prompt : len(slots) - self.window]
            count = self.budget - 2 * self.window - self.prompt
            gone = {slot.position for slot in self.losers(j, rivals, count)}
            self.slots[j] = [slot for slot in slots if slot.position not in gone]
            for position in gone:
                del self.looks[j][position]

    def losers(self, j: int, rivals: list[Slot], count: int) -> list[Slot]:
        """All but the `count` most important, of equal ones the older."""
        gaps = [(self.steps - last, m) for last, m in (self.looks[j][s.position] for s in rivals)]
        worth = [sum(halves(*gap)) for gap in gaps]
        order = sorted(range(len(rivals)), key=lambda i: (-worth[i], i))
        if count < len(order):
            a, b = order[count - 1], order[count]
            # The same integers, or the same longest gap where the other half is too small to
            # count, give the same number everywhere: no coin flip, and so no margin.
            tiny = max(halves(*gaps[a])[0], halves(*gaps[b])[0])
            same = gaps[a][1] == gaps[b][1] and tiny <= 1e-17 * halves(*gaps[a])[1]
            if gaps[a] != gaps[b] and not same and worth[a] - worth[b] < 1e-12 * worth[a]:
                self.margin = 0.0
        return [rivals[i] for i in order[count:]]
