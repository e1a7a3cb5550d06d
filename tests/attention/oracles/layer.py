"""What all oracle layers share: a list of slots, one softmax, dense prefill, stable top-k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Rope = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""rope(x (S, D), positions (S,)) -> x turned to those positions, (S, D)."""


@dataclass(eq=False)
class Slot:
    """One token as one KV head remembers it. `k` has no position in it."""

    position: int
    k: np.ndarray
    v: np.ndarray
    score: np.ndarray  # (G,): what the method accumulates for it, per query head of the group


class Layer:
    """Attention of one layer for ONE sequence: dense, and nothing is ever dropped.

    A method overrides `step` (a decode query) and, where it evicts, `cut` (after every forward).

    Args:
        rope: turns unroped vectors to positions.
        Hq, Hkv: query heads and KV heads.
        scale: factor of q.k before the softmax.
        index: the layer's number in the model (quest leaves the first ones dense).
        keep_prompt: for methods that drop tokens: none of the first forward's is, or, a number, so
            many of its first ones.

    Attributes:
        sink_logits: (Hq,), take their share in every softmax and give no value, as in gpt-oss.
        prompt: how many first tokens must stay; the method works in what they leave of a budget.
    """

    sink_logits: np.ndarray | None = None

    def __init__(
        self,
        rope: Rope,
        Hq: int,
        Hkv: int,
        scale: float,
        index: int = 0,
        keep_prompt: bool | int = False,
    ) -> None:
        self.keep_prompt, self.prompt = keep_prompt, 0
        self.rope, self.Hq, self.Hkv, self.G = rope, Hq, Hkv, Hq // Hkv
        self.scale, self.index = scale, index
        self.n = 0
        self.slots: list[list[Slot]] = [[] for _ in range(Hkv)]
        self.read: list[list[int]] = [[] for _ in range(Hkv)]
        self.margin = math.inf  # smallest relative gap between the last chosen and first refused

    # -- what the model calls -------------------------------------------------------------

    def forward(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """q (T, Hq, D), k and v (T, Hkv, D), all unroped -> output (T, Hq, D)."""
        T = len(q)
        decode = T == 1 and self.n > 0  # one token on an empty cache is a prefill of length 1
        for t in range(T):
            for j in range(self.Hkv):
                zero = np.zeros(self.G, dtype=q.dtype)
                self.slots[j].append(Slot(self.n + t, k[t, j], v[t, j], zero))
        first, self.n = self.n, self.n + T
        if first == 0:
            self.prompt = self.staying(T)
        self.read = [[] for _ in range(self.Hkv)]
        out = self.step(q[0])[None] if decode else self.prefill(q, first)
        self.cut()
        return out

    def staying(self, prompt: int) -> int:
        """How many first tokens of a prompt of this many stay."""
        return prompt if self.keep_prompt is True else min(prompt, self.keep_prompt)

    def kept(self) -> list[list[int]]:
        """Positions kept after the forward, one sorted list per KV head."""
        return [[slot.position for slot in slots] for slots in self.slots]

    # -- what a method may change ---------------------------------------------------------

    def step(self, q: np.ndarray) -> np.ndarray:
        """A decode query q (Hq, D), unroped; its own slot is the newest one."""
        return self.prefill(q[None], self.n - 1)[0]

    def cut(self) -> None:
        """Drop slots after a forward."""

    def key_positions(self, slots: list[Slot]) -> np.ndarray:
        """Where prefill sees these slots."""
        return np.array([slot.position for slot in slots])

    def sets(self) -> list[tuple[range, list[Slot]]]:
        """Which query heads see which slots."""
        return [(self.group(j), self.slots[j]) for j in range(self.Hkv)]

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        """Query head `h` at position `query` gave these probabilities to these slots."""

    # -- the arithmetic -------------------------------------------------------------------

    def prefill(self, q: np.ndarray, first: int) -> np.ndarray:
        """Every query sees everything held plus the new tokens up to itself."""
        out = self.output(q)
        for heads, slots in self.sets():
            where = self.key_positions(slots)
            keys = self.rope(np.array([slot.k for slot in slots]), where)
            values = np.array([slot.v for slot in slots])
            count = len(slots) - len(q)
            for h in heads:
                for t in range(len(q)):
                    end = count + t + 1
                    query = self.rope(q[t, h][None], where[end - 1][None])[0]
                    p = self.softmax(keys[:end] @ query * self.scale, h)
                    out[t, h] = p @ values[:end]
                    self.saw(h, slots[:end], first + t, p)
        self.read = [[slot.position for slot in slots] for _, slots in self.sets()]
        return out

    def softmax(self, logits: np.ndarray, h: int) -> np.ndarray:
        """Probabilities query head `h` gives to the keys of these logits."""
        if self.sink_logits is None:
            return softmax(logits)
        return softmax(np.append(logits, self.sink_logits[h]))[:-1]

    def output(self, q: np.ndarray) -> np.ndarray:
        """Zeros for the output of q: one vector like a value for each query and head."""
        return np.zeros((*q.shape[:-1], len(self.slots[0][0].v)), dtype=q.dtype)

    def group(self, j: int) -> range:
        """The query heads which share KV head j."""
        return range(j * self.G, (j + 1) * self.G)

    def reduce(self, per_head: np.ndarray, how: str) -> np.ndarray:
        """(G, ...) -> (...): the reduction over the query heads of a group."""
        if how == "sum":
            return per_head.sum(0)
        if how == "mean":
            return per_head.mean(0)
        if how == "max":
            return per_head.max(0)
        raise ValueError(f"no reduction {how!r}")

    def best(self, scores: np.ndarray, count: int, probabilities: bool = False) -> list[int]:
        """Indices of the `count` largest scores, in order of age; ties go to the older one.

        The margin is relative to the largest score. Rounding moves one softmax's probabilities in
        proportion to themselves, by the absolute error of their logits (some five times that of
        other scores): for `probabilities` it is relative to the last chosen one, a fifth of that.
        """
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        if 0 < count < len(order):
            gap = float(scores[order[count - 1]] - scores[order[count]])
            last = 5 * float(scores[order[count - 1]])
            scale = last if probabilities else float(np.abs(scores).max())
            self.margin = min(self.margin, gap / scale if scale else 0.0)
        return sorted(order[:count])


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()
