"""What a layer remembers of each block of its cache, kept up to date where keys are written."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from attention.engines import ENGINES
from lil.serving.blocks.policies import BlockPolicy
from lil.serving.blocks.ropes import RopeTable

#: Numbers that are gathered at once to compare blocks: as many as a core's cache holds.
GATHERED = 2**18


class Summaries:
    """Sums or maxima over the keys of each block of a cache, in float32.

    A block that another request gets begins anew with its first token, and a shared block keeps
    what its keys are, so nothing has to be reported when blocks change hands.
    """

    def __init__(
        self,
        policy: BlockPolicy,
        blocks: int,
        Hkv: int,
        D: int,
        rope: RopeTable | None,
        device: torch.device | None = None,
    ) -> None:
        self.policy, self.rope, self.blocks = policy, rope, blocks
        # One more than the cache has, for padding: to leave it out, the host would have to know
        # how many tokens it is.
        self.data = torch.zeros(blocks + 1, Hkv, policy.size(D), device=device)
        # Looked up here, before anything is captured: an import takes a while.
        self._kernel = _kernel(self.data.device)

    @property
    def fused(self) -> bool:
        """Whether a Triton kernel compares blocks where they lie, without a copy of them."""
        return self._kernel is not None

    def warm(self, Hkv: int, G: int, D: int) -> None:
        """Compile the kernel, where there is one, for queries (N, Hkv, G, D)."""
        if self.fused:
            none = torch.zeros(1, 1, dtype=torch.long, device=self.data.device)
            self.worth(torch.zeros(1, Hkv, G, D, device=self.data.device), none[0], none)

    def note(self, k: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Take in the keys (T, Hkv, D) of a step.

        A slot is block * tokens of a block + place; -1 for padding.
        """
        block = (slots // self.policy.block).masked_fill(slots < 0, self.blocks)
        begun = block.masked_fill(slots % self.policy.block != 0, self.blocks)
        summands = self.policy.summands(k, positions, self.rope).float()
        if self.policy.grows == "amax":
            self.data.index_fill_(0, begun, float("-inf"))
            index = block[:, None, None].expand_as(summands)
            self.data.scatter_reduce_(0, index, summands, "amax")
        else:
            self.data.index_fill_(0, begun, 0.0)
            self.data.index_add_(0, block, summands)

    def worth(self, q: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
        """What blocks (N, P) are worth to scaled queries (N, Hkv, G, D): (N, sets, P)."""
        vectors = self.policy.products(q, positions, self.rope).float()  # (N, sets, M, size)
        if self._kernel is not None:
            fused: Tensor = self._kernel.compared(vectors, self.data, blocks)
            return fused
        N, P = blocks.shape
        worth = vectors.new_empty(N, vectors.shape[1], P)
        rows = max(1, GATHERED // max(1, P * self.data.stride(0)))
        columns = P if rows > 1 else max(1, GATHERED // self.data.stride(0))
        for row in range(0, N, rows):
            some = slice(row, row + rows)
            for column in range(0, P, columns):
                part = slice(column, column + columns)
                worth[some, :, part] = self._compared(vectors[some], blocks[some, part])
        return worth

    def _compared(self, vectors: Tensor, blocks: Tensor) -> Tensor:
        N, sets, _, size = vectors.shape
        summaries = self.data.index_select(0, blocks.reshape(-1))
        summaries = summaries.view(N, blocks.shape[1], sets, size).transpose(1, 2)
        return torch.matmul(vectors, summaries.transpose(2, 3)).amax(2)


def _kernel(device: torch.device) -> Any:
    """The module of the Triton kernel where it can work, on GPUs and in the interpreter."""
    if ENGINES["triton"].refusal(device, torch.float32) is not None:
        return None
    return importlib.import_module("lil.serving.blocks.worth_kernel")
