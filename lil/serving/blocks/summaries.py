"""What a layer remembers of each block of its cache, kept up to date where keys are written."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from attention.engines import ENGINES
from lil.serving.blocks.policy import BlockPolicy
from lil.serving.blocks.ropes import RopeTable

#: Numbers that are gathered at once to compare blocks; many queries with long gaps take turns.
GATHERED = 2**24
#: The same on a CPU, where what a core's cache holds need not be read from memory again: of one
#: query, and of several, which are copied once more to be multiplied.
GATHERED_OF_ONE, GATHERED_OF_SEVERAL = 2**19, 2**17


class Summaries:
    """Sums or maxima over the keys of each block, in float32.

    A block that is given to another request begins anew with its first token, and one that is
    shared keeps what its keys are, so nothing has to be told when blocks change hands. Nothing here
    waits for the device.

    Args:
        policy: what is remembered.
        blocks: of the cache.
        Hkv: KV heads.
        D: head size.
        rope: turns keys, where the policy asks for it.
        device: of the cache; None for torch's own.
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
        # One more than the cache has, for tokens that are none of a request: to leave them out, the
        # host would have to know how many there are.
        self.data = torch.zeros(blocks + 1, Hkv, policy.size(D), device=device)
        # Found here, before anything is captured: an import and a look at the device take a while.
        self._kernel = _kernel(self.data.device)

    @property
    def fused(self) -> bool:
        """Whether a kernel of Triton compares blocks where they lie, without a copy of them."""
        return self._kernel is not None

    def warm(self, Hkv: int, G: int, D: int) -> None:
        """Compile the kernel, where there is one, for queries (N, Hkv, G, D), not in some step."""
        if not self.fused:
            return
        none = torch.zeros(1, 1, dtype=torch.long, device=self.data.device)
        self.worth(torch.zeros(1, Hkv, G, D, device=self.data.device), none[0], none)

    def note(self, k: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Take in the keys of a step.

        Args:
            k: (T, Hkv, D).
            slots: where each is stored, block times tokens of a block and place in it; -1 for none.
            positions: of each, (T,).
        """
        block = (slots // self.policy.block).masked_fill(slots < 0, self.blocks)
        begun = block.masked_fill(slots % self.policy.block != 0, self.blocks)
        each = self.policy.remembered(k, positions, self.rope).float()
        if self.policy.grows == "amax":
            self.data.index_fill_(0, begun, float("-inf"))
            at = block[:, None, None].expand_as(each)
            self.data.scatter_reduce_(0, at, each, "amax")
        else:
            self.data.index_fill_(0, begun, 0.0)
            self.data.index_add_(0, block, each)

    def worth(self, q: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
        """What each block is worth to each query, (N, sets, P).

        Args:
            q: scaled, (N, Hkv, G, D).
            positions: of the queries, (N,).
            blocks: of the cache, (N, P).
        """
        vectors = self.policy.products(q, positions, self.rope).float()  # (N, sets, M, size)
        if self._kernel is not None:
            fused: Tensor = self._kernel.compared(vectors, self.data, blocks)
            return fused
        N, P = blocks.shape
        of_one = of_several = GATHERED
        if blocks.device.type == "cpu":
            of_one, of_several = GATHERED_OF_ONE, GATHERED_OF_SEVERAL
        width = self.data.stride(0)
        rows = max(1, of_several // max(1, P * width))
        columns = P if rows > 1 else max(1, of_one // width)
        if rows >= N and columns >= P:
            return self._compared(vectors, blocks)
        found = vectors.new_empty(N, vectors.shape[1], P)
        for row in range(0, N, rows):
            some = slice(row, row + rows)
            for column in range(0, P, columns):
                part = slice(column, column + columns)
                found[some, :, part] = self._compared(vectors[some], blocks[some, part])
        return found

    def _compared(self, vectors: Tensor, blocks: Tensor) -> Tensor:
        N, sets, M, size = vectors.shape
        known = self.data.index_select(0, blocks.reshape(-1))
        known = known.view(N, blocks.shape[1], sets, size).transpose(1, 2)
        each = torch.matmul(vectors, known.transpose(2, 3))  # (N, sets, M, P)
        return each.amax(2) if M > 1 else each[:, :, 0]


def _kernel(device: torch.device) -> Any:
    """The module of the Triton kernel where one can work, on GPUs and in the interpreter."""
    if ENGINES["triton"].refusal(device, torch.float32) is not None:
        return None
    return importlib.import_module("lil.serving.blocks.worth_kernel")
