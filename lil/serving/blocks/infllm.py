"""`infllm` over blocks: a window, the first blocks, and those whose mean key fits the query."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from attention.contract import Counts
from attention.errors import InvalidValue
from attention.methods.infllm import InfLLM
from lil.serving.blocks.policy import BlockPolicy, check_dense, check_whole
from lil.serving.blocks.ropes import RopeTable


class InfLLMBlocks(BlockPolicy):
    """Reads what `attention.InfLLM` reads with blocks of an engine and keys where they were seen.

    A representative is the mean of all keys of a block: how much probability each received is not
    known outside an engine's kernel. It is that of keys turned to position 0, against the query at
    distance n_local - 1, as in the method.

    Raises:
        InvalidValue: far keys at one distance, representatives of some keys, first tokens or blocks
            that are none of the engine's, or the sparse prefill.
    """

    kind = InfLLM
    grows = "sum"
    turns = True
    method: Any

    def check(self) -> None:
        method, parts = self.method, self.method.parts
        check_dense(method)
        if method.far_position != "absolute":
            allowed = "'absolute': an engine stores keys with their positions in them"
            raise InvalidValue("far_position", method.far_position, allowed)
        if method.prefill != "dense":
            raise InvalidValue(
                "prefill", method.prefill, "'dense': an engine reads prompts in full"
            )
        if parts.block != self.block:
            raise InvalidValue("block", parts.block, f"{self.block}, the engine's block")
        if method.repr_topk < self.block:
            allowed = f"block = {self.block}: an engine tells no probabilities to choose keys by"
            raise InvalidValue("repr_topk", method.repr_topk, allowed)
        check_whole("n_init", parts.n_init, self.block)
        if parts.topk < 1:
            raise InvalidValue("topk", parts.topk, "at least 1; without any it is sink")

    @property
    def best(self) -> int:
        topk: int = self.method.parts.topk
        return topk

    def sets(self, Hkv: int) -> int:
        return Hkv if self.method.selection == "kv_head" else 1

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        parts = self.method.parts
        first = parts.n_init // self.block
        blocked = np.maximum(seen - parts.n_local - parts.n_init, 0)
        # The newest block that left the window, of 1 to `block` tokens, is always read.
        full = np.maximum(-(-blocked // self.block) - 1, 0)
        return np.full_like(seen, first), first + full

    def size(self, D: int) -> int:
        return D

    def remembered(self, k: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        assert rope is not None
        return rope.to_start(k, positions) / self.block

    def products(self, q: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        assert rope is not None
        N, Hkv = q.shape[:2]
        far = rope.shift(q, positions, self.method.parts.n_local - 1).sum(2)
        sets = self.sets(Hkv)
        return far.view(N, sets, 1, Hkv // sets * far.shape[-1])
