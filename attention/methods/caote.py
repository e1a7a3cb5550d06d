"""CAOTE: tokens without which the output would move, judged by probability and value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.contract import Geometry, check_flag
from attention.methods.snapkv import SnapKV, SnapKVLayer

#: The largest share of a token: with all of it the output would be its value alone.
MOST = 1 - 1e-6


class CAOTELayer(SnapKVLayer):
    """Each token is judged as if it alone were dropped."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: CAOTE) -> None:
        super().__init__(geometry, backend)
        self.fast = backend.fast

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        worth = super().rank(k, q, rows)
        candidates = k.shape[2] - q.shape[3]
        mass = worth[..., :candidates]
        total = mass.sum(-1, keepdim=True)
        share = torch.where(total > 0, mass / total, 0)
        values = self.v.data[:, :, :candidates].index_select(0, rows).to(share.dtype)
        output = values.mean(2, True) if self.fast else share[:, :, None] @ values
        share = share.clamp(max=MOST)
        away = torch.linalg.vector_norm(values - output, dim=-1)
        worth[..., :candidates] = share / (1 - share) * away
        return worth


@dataclass(frozen=True, kw_only=True)
class CAOTE(SnapKV):
    """Keeps the newest tokens, and those whose loss would change the attention's output most.

    CAOTE, arXiv 2504.14051, on the scores of `snapkv`. A token's share a of the mass that the
    candidates get there and its value v give the change of the output o when it alone goes:
    a / (1 - a) |v - o|. The authors evict from prompts too, in blocks; here many tokens go at once,
    at intervals, as in `snapkv`, and the newest take no part in the shares and in o.

    Args:
        budget: tokens a decode query may read, current token included; at least 4.
        window: newest tokens kept, whose queries score the others; min(32, budget // 4) by default.
        keep_prompt: the prompt stays; the window and what is cut follow from the rest.
        kernel: neighbours over which probability is averaged, itself included; odd.
        gqa: "sum", "mean" or "max" of the probabilities of a KV head's query heads.
        fast: the mean of the candidates' values takes the place of o (FastCAOTE).
    """

    name: ClassVar[str] = "caote"
    source: ClassVar[str] = "CAOTE: how far the output moves without a token (arXiv 2504.14051)"
    layer_class = CAOTELayer
    fast: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("fast", self.fast)
