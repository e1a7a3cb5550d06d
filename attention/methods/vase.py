"""VaSE: values of a wide range stay, others are drawn by what the newest queries attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attention.contract import (
    Geometry,
    added,
    check_int,
    draws,
    newest_logits,
    over_group,
    softmax,
)
from attention.methods.snapkv import SnapKV, SnapKVLayer


class VaSELayer(SnapKVLayer):
    """Tokens are drawn anew at each compression, by the tokens that their row has seen."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: VaSE) -> None:
        super().__init__(geometry, backend)
        self.sinks, where = backend.sinks, (geometry.index, geometry.Hkv, geometry.device)
        self.heads = draws.words_of_heads(backend.seed, *where)[:, None]

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        window, S, wide = q.shape[3], k.shape[2], self.geometry.wide
        position, v = (x.data.index_select(0, rows)[:, :, :S] for x in (self.position, self.v))
        seen, position, v = position[:, :, -1:] + 1, position[:, :, :-window], v[:, :, :-window]
        number = draws.mix(draws.mix(self.heads + seen) + position)
        wait = -torch.log((number.to(torch.float64) + 0.5) / (draws.WORD + 1))
        spread = v.amax(-1).to(wide) - v.amin(-1).to(wide)
        spread = spread.masked_fill(position < self.sinks, float("inf"))
        prompt = torch.arange(S - window, device=k.device) < self.limit - self.room
        spread = spread.masked_fill(prompt, float("-inf"))
        order = spread.argsort(dim=-1, descending=True, stable=True)
        stay = self.room - (self.room // 4).clamp(max=128)
        large = order.argsort(-1) < torch.minimum(stay // 4, stay - window)
        worth = (self.weights(q, k[:, :, :-window]) / wait).masked_fill(large, float("inf"))
        return functional.pad(worth, (0, window), value=float("inf"))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Attention of the window among the other tokens alone, (R, Hkv, S), with k their keys."""
        probs = softmax(newest_logits(q, k, own=False), self.geometry.grouped_sinks)
        mean = added(probs, 3).flatten(0, 1) / q.shape[3]
        pooled = functional.avg_pool1d(mean, self.kernel, stride=1, padding=self.kernel // 2)
        return over_group(pooled.view(*q.shape[:3], -1), self.gqa, 2)


@dataclass(frozen=True, kw_only=True)
class VaSE(SnapKV):
    """Keeps the newest tokens, those with values of a wide range, and a sample by attention.

    VaSE-AttnV, arXiv 2606.03928; terarachang/VaSE. A range is the largest coordinate less the
    smallest. A quarter of what stays are the text's first tokens and those of the widest range; the
    rest are drawn without replacement by the probability that the newest queries give them among
    all others, averaged over neighbours. The authors compress every 64 steps, never
    in a prompt; here a row that reaches the budget is compressed to budget - min(128, budget // 4).
    A draw follows from seed, layer, KV head, tokens seen and position, whatever the batch is.

    Args:
        budget: tokens a decode query may read, current token included; at least 4.
        window: newest tokens kept, whose queries weigh the others; min(64, budget // 4) by default.
        keep_prompt: the prompt stays; the window and what is cut follow from the rest.
        kernel: neighbours over which probability is averaged, itself included; odd. Beyond the
            ends they count as 0.
        gqa: "mean", "sum" or "max" of the weights of a KV head's query heads.
        sinks: first tokens that count as those of the widest range.
        seed: of the draws, any integer.
    """

    name: ClassVar[str] = "vase"
    source: ClassVar[str] = "VaSE: wide values, and a draw weighted by attention (arXiv 2606.03928)"
    layer_class = VaSELayer
    most_window: ClassVar[int] = 64
    gqa: str = "mean"
    sinks: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("sinks", self.sinks, 0)
        check_int("seed", self.seed)
