"""What a layer remembers of each block of its cache, kept up to date where keys are written."""

from __future__ import annotations

import torch
from torch import Tensor

from lil.serving.blocks.policy import BlockPolicy
from lil.serving.blocks.ropes import RopeTable


class Summaries:
    """Sums or maxima over the keys of each block, in float32.

    A block that is given to another request begins anew with its first token, and one that is
    shared keeps what its keys are, so nothing has to be told when blocks change hands.

    Args:
        policy: what is remembered.
        blocks: of the cache.
        Hkv: KV heads.
        D: head size.
        rope: turns keys, where the policy asks for it.
    """

    def __init__(
        self, policy: BlockPolicy, blocks: int, Hkv: int, D: int, rope: RopeTable | None
    ) -> None:
        self.policy, self.rope = policy, rope
        self.data = torch.zeros(blocks, Hkv, policy.size(D))

    def note(self, k: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Take in the keys of a step.

        Args:
            k: (T, Hkv, D).
            slots: where each is stored, block times tokens of a block and place in it; -1 for none.
            positions: of each, (T,).
        """
        if bool((slots < 0).any()):
            real = slots >= 0
            k, slots, positions = k[real], slots[real], positions[real]
        block, place = slots // self.policy.block, slots % self.policy.block
        each = self.policy.remembered(k, positions, self.rope).float()
        if self.policy.grows == "amax":
            self.data.index_fill_(0, block[place == 0], float("-inf"))
            at = block[:, None, None].expand_as(each)
            self.data.scatter_reduce_(0, at, each, "amax")
        else:
            self.data.index_fill_(0, block[place == 0], 0.0)
            self.data.index_add_(0, block, each)

    def worth(self, q: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
        """What each block is worth to each query, (N, sets, P).

        Args:
            q: scaled, (N, Hkv, G, D).
            positions: of the queries, (N,).
            blocks: of the cache, (N, P).
        """
        vectors = self.policy.products(q, positions, self.rope).float()  # (N, sets, M, size)
        N, sets, M, size = vectors.shape
        known = self.data[blocks].view(N, blocks.shape[1], sets, size).transpose(1, 2)
        each = torch.matmul(vectors, known.transpose(2, 3))  # (N, sets, M, P)
        return each.amax(2) if M > 1 else each[:, :, 0]
