"""G-KV: attention remembered from compression to compression, minus redundancy of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attention.contract import (
    Compressing,
    Dropping,
    Geometry,
    added,
    check_number,
    check_share,
    check_window,
    newest_logits,
    over_group,
    softmax,
)


class GKVLayer(Compressing):
    """A candidate remembers its score, every other token 0."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: GKV) -> None:
        super().__init__(geometry, backend, observers=backend.window)
        self.backend = backend
        self.score = self.remember("score", dtype=geometry.wide)

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        g, b, candidates = self.geometry, self.backend, k.shape[2] - self.observers
        probs = softmax(newest_logits(q, k), g.grouped_sinks)[..., :candidates]
        attention = relative(added(over_group(probs, b.gqa, 2), 2))
        old = self.score.data[rows, :, :candidates]
        score = torch.maximum(b.alpha * old, attention)
        self.score.data[rows, :, :candidates] = score
        redundancy = g.engine.redundancy(k.to(g.wide), b.threshold)[:, :, :candidates]
        worth = b.mix * score - (1 - b.mix) * relative(redundancy)
        return functional.pad(worth, (0, self.observers), value=float("inf"))


def relative(x: Tensor) -> Tensor:
    """Shares of the largest of the last axis; zeros where it is 0."""
    return x / x.amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)


@dataclass(frozen=True, kw_only=True)
class GKV(Dropping):
    """Keeps tokens by attention, past one remembered, minus redundancy of keys, and the newest.

    G-KV, arXiv 2512.00504; microsoft/G-KV. Attention: mean over the window's queries of the
    probability, reduced over the group, divided by its maximum over all but the window. A token's
    score is that or `alpha` times its score at the last compression, whichever is larger.
    Redundancy is that of `rkv`, divided by its maximum. The authors compress back to the budget
    every 128 tokens; here a row that reaches the budget is compressed to budget - min(128, budget
    // 4). A key leaves out one similar key, of all; in their kernel by blocks of 64 and of 16 keys.

    Args:
        budget: tokens a decode query may read, current token included; at least 22 with a window
            of 16.
        window: newest tokens kept, whose queries score the others.
        keep_prompt: the prompt stays; what is cut follows from the rest.
        mix: weight of the score, from 0 to 1; redundancy has the rest.
        alpha: what is left of a score at the next compression, from 0 to 1.
        threshold: cosine above which two keys are similar, from -1 to 1.
        gqa: "max", "mean" or "sum" of the probabilities of a KV head's query heads.
    """

    name: ClassVar[str] = "gkv"
    source: ClassVar[str] = "G-KV: remembered attention minus redundancy (arXiv 2512.00504)"
    layer_class = GKVLayer
    choices: ClassVar = {"gqa": ("max", "mean", "sum")}
    window: int = 16
    mix: float = 0.5
    alpha: float = 0.8
    threshold: float = 0.5
    gqa: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.budget, self.window)
        check_share("mix", self.mix)
        check_share("alpha", self.alpha)
        check_number("threshold", self.threshold, "a number from -1 to 1", least=-1, most=1)
