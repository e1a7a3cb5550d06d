"""`quest` over blocks: the last one and those with the largest upper bound of q.k."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention.contract import Counts
from attention.errors import InvalidValue
from attention.methods.quest import Quest
from lil.serving.blocks.policy import BlockPolicy, check_dense
from lil.serving.blocks.ropes import RopeTable


class QuestBlocks(BlockPolicy):
    """Reads what `attention.Quest` reads with pages of a block, a choice per KV head.

    Raises:
        InvalidValue: pages of another size, a set per query head, or the script's rule.
    """

    kind = Quest
    grows = "amax"
    method: Any

    def check(self) -> None:
        check_dense(self.method)
        if self.method.page != self.block:
            allowed = f"{self.block}, the engine's block"
            raise InvalidValue("page", self.method.page, allowed)
        if self.method.rule != "kernel":
            raise InvalidValue("rule", self.method.rule, "'kernel': the last page is always read")
        if self.method.gqa == "query_head":
            allowed = "'sum', 'mean' or 'max': a table is one KV head's, of all its query heads"
            raise InvalidValue("gqa", self.method.gqa, allowed)

    @property
    def best(self) -> int:
        found: int = self.method.budget // self.block - 1
        return found

    def sets(self, Hkv: int) -> int:
        return Hkv

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        return np.zeros_like(seen), -(-seen // self.block) - 1

    def size(self, D: int) -> int:
        return 2 * D

    def remembered(self, k: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        # Maxima of k and of -k.
        del positions, rope
        return torch.cat((k, -k), dim=-1)

    def products(self, q: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        # The sum over D of max(q max_k, q min_k) is relu(q).max_k + relu(-q).max(-k).
        del positions, rope
        signed = torch.cat((q, -q), dim=-1).relu_()
        return signed if self.method.gqa == "max" else signed.sum(2, keepdim=True)
