"""Oracle of `infllm`: initial tokens, a local window, and blocks looked up by representatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .layer import Layer, Slot

SIZES = ("block", "topk", "n_init", "n_local")  # all of them given, or none


@dataclass(frozen=True)
class Parts:
    """Where every past token is, the current one included; positions."""

    init: range
    blocks: list[range]
    remainder: range
    local: range


def default_parameters(budget: int) -> dict[str, int]:
    """block, topk, n_init, n_local which add up to the budget."""
    root = math.sqrt(budget)
    # Spec: "nearest by plain distance"; halfway (b = 36) it is silent: the smaller power.
    block = min((2**i for i in range(20)), key=lambda power: abs(power - root))
    topk = budget // (2 * block) - 1
    n_init = min(max(budget // 16, 4), 32)
    n_local = budget - n_init - (topk + 1) * block
    return {"block": block, "topk": topk, "n_init": n_init, "n_local": n_local}


class InfLLMLayer(Layer):
    """Keeps everything; far tokens are seen at one distance, n_local - 1.

    selection="kv_head": each KV head chooses its own blocks, by the sum over its group.
    far_position="absolute": far tokens are seen where they are (the choice of blocks is the same).
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        repr_topk: int = 4,
        selection: str = "layer",
        far_position: str = "window",
        **kwargs: Any,
    ) -> None:
        sizes = {name: kwargs.pop(name) for name in SIZES if name in kwargs}
        super().__init__(*args, **kwargs)
        self.budget, self.selection, self.far_position = budget, selection, far_position
        self.__dict__.update(sizes or default_parameters(budget))
        self.block: int
        self.topk: int
        self.n_init: int
        self.n_local: int
        self.repr_topk = min(repr_topk, self.block)
        self.representatives: dict[tuple[int, int], np.ndarray] = {}

    def parts(self) -> Parts:
        left = max(self.n - self.n_local, 0)  # tokens which have left the window
        init = min(left, self.n_init)
        m = left - init
        full = max(m - 1, 0) // self.block  # the remainder holds 1..block tokens, never none
        start = init + full * self.block
        blocks = [range(init + i * self.block, init + (i + 1) * self.block) for i in range(full)]
        return Parts(range(init), blocks, range(start, left), range(left, self.n))

    def saw(self, h: int, seen: list[Slot], query: int, probabilities: np.ndarray) -> None:
        for slot, p in zip(seen, probabilities, strict=True):
            if query - slot.position < self.n_local:
                slot.score[h % self.G] += p

    def representative(self, j: int, block: range) -> np.ndarray:
        """Mean unroped key of the block's tokens with the largest mass, for KV head j."""
        # Remembered, as its tokens have left the window and collect nothing any more.
        if (j, block.start) not in self.representatives:
            slots = [self.slots[j][s] for s in block]
            chosen = self.best(np.array([slot.score.sum() for slot in slots]), self.repr_topk)
            mean = np.array([slots[i].k for i in chosen]).mean(0)
            self.representatives[j, block.start] = mean
        return self.representatives[j, block.start]

    def choose(self, far_q: np.ndarray, blocks: list[range]) -> list[list[int]]:
        """Which blocks the queries far_q (Hq, D) take, for each KV head."""
        scores = np.zeros((self.Hkv, len(blocks)), dtype=far_q.dtype)
        for i, block in enumerate(blocks):
            for h in range(self.Hq):
                j = h // self.G
                scores[j, i] += far_q[h] @ self.representative(j, block)
        if self.selection == "kv_head":
            return [self.best(scores[j], self.topk) for j in range(self.Hkv)]
        return [self.best(scores.sum(0), self.topk)] * self.Hkv

    def step(self, q: np.ndarray) -> np.ndarray:
        parts = self.parts()
        far_q = self.rope(q, np.full(self.Hq, self.n_local - 1))
        chosen = self.choose(far_q, parts.blocks)
        local = list(parts.local)
        out = self.output(q)
        for j in range(self.Hkv):
            # Spec: init, chosen blocks and the remainder are all "far"; only the window is near.
            blocks = [s for i in chosen[j] for s in parts.blocks[i]]
            far = [*parts.init, *blocks, *parts.remainder]
            self.attend(j, far, local, far_q, q, out)
            self.read[j] = far + local
            assert len(self.read[j]) <= self.budget
        return out

    def attend(
        self,
        j: int,
        far: list[int],
        local: list[int],
        far_q: np.ndarray,
        q: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """One softmax of KV head j's queries over far and local tokens, written to `out`."""
        slots = self.slots[j]
        near_q = self.rope(q, np.full(self.Hq, self.n - 1))
        values = np.array([slots[s].v for s in far + local])
        local_keys = self.rope(np.array([slots[s].k for s in local]), np.array(local))
        for h in self.group(j):
            logits = [self.far_logit(slots[s], far_q[h], near_q[h]) for s in far]
            logits += [key @ near_q[h] * self.scale for key in local_keys]
            p = self.softmax(np.array(logits, dtype=q.dtype), h)
            out[h] = p @ values
            self.saw(h, [slots[s] for s in local], self.n - 1, p[len(far) :])

    def far_logit(self, slot: Slot, far_q: np.ndarray, near_q: np.ndarray) -> float:
        """q.k of a token outside the window."""
        if self.far_position == "absolute":
            key = self.rope(slot.k[None], np.array([slot.position]))[0]
            return float(key @ near_q * self.scale)
        return float(slot.k @ far_q * self.scale)
