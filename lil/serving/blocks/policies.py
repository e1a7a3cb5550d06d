"""What a decode query reads of a cache that an engine keeps in blocks.

Every policy leaves out one stretch of whole blocks, the gap, and reads the best few blocks of it.
The length of the gap and the number of blocks follow from the tokens seen alone, so an engine can
plan a step on the host; the choice of the best, where there are any, is each layer's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention.contract import Backend, Counts
from attention.errors import InvalidValue
from attention.methods import METHODS
from attention.methods.infllm import InfLLM
from attention.methods.quest import Quest
from attention.methods.sink import Sink
from attention.methods.window import Window
from lil.serving.blocks.ropes import RopeTable

#: Yes or no for each of N.
Mask = npt.NDArray[np.bool_]

_ABSOLUTE = "'absolute': an engine stores keys with their positions in them"


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Refuse a value unless the condition holds."""
    if not holds:
        raise InvalidValue(field, value, allowed)


@dataclass(frozen=True)
class BlockPolicy(ABC):
    """A method of `attention` over an engine's cache in blocks of `block` tokens."""

    kind: ClassVar[type[Backend]]
    #: The method's parameter that is the engine's block by default.
    grain: ClassVar[str | None] = None
    #: How a block's summary grows with its keys: "amax" or "sum"; None for no summary.
    grows: ClassVar[str | None] = None
    #: Whether summaries need keys turned to another position.
    turns: ClassVar[bool] = False

    method: Any
    block: int

    def __post_init__(self) -> None:
        keeps = getattr(self.method, "keep_prompt", False)
        require(not keeps, "keep_prompt", keeps, "False inside an engine")
        for name in ("budgets", "pyramid", "share"):
            value = getattr(self.method, name, None)
            require(value is None, name, value, "nothing inside an engine")
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Refuse what cannot be done by whole blocks."""

    def _require_whole(self, field: str, tokens: int) -> None:
        allowed = f"a multiple of the engine's block of {self.block} tokens"
        require(tokens % self.block == 0, field, tokens, allowed)

    @abstractmethod
    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        """The first block of the gap and the first behind it, for queries that see (N,) tokens."""

    @property
    def best(self) -> int:
        """Blocks of the gap that are read."""
        return 0

    @property
    def window(self) -> int | None:
        """Tokens at the end of a query's table that are read; None for all of it."""
        return None

    def sets(self, Hkv: int) -> int:  # noqa: ARG002
        """Choices that a query makes: one for the layer, or one per KV head."""
        return 1

    def leaves_out(self, seen: Counts) -> Mask:
        """Which queries read less than everything, (N,)."""
        start, end = self.gap(seen)
        mask: Mask = end - start > self.best
        return mask

    def blocks_read(self, seen: Counts) -> Counts:
        """Blocks that a query's table lists, (N,)."""
        start, end = self.gap(seen)
        out = np.where(self.leaves_out(seen), np.maximum(end - start - self.best, 0), 0)
        read: Counts = -(-seen // self.block) - out
        return read

    def tokens_listed(self, seen: Counts) -> Counts:
        """Tokens of the blocks that a query's table lists, (N,); only the last may be begun."""
        listed: Counts = seen - (-(-seen // self.block) - self.blocks_read(seen)) * self.block
        return listed

    def tokens_read(self, seen: Counts) -> Counts:
        """Keys that a query reads, (N,)."""
        return self.tokens_listed(seen)

    def blocks_compared(self, seen: Counts) -> Counts:
        """Blocks whose worth a query computes, (N,)."""
        start, end = self.gap(seen)
        compared: Counts = np.where(self.leaves_out(seen) & (self.best > 0), end - start, 0)
        return compared

    # Summaries of blocks, where any of the gap are read: `QuestBlocks` and `InfLLMBlocks`.

    def size(self, D: int) -> int:
        """Numbers of a block's summary, per KV head."""
        raise NotImplementedError

    def summands(self, k: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        """What each stored key (T, Hkv, D) adds to its block's summary, (T, Hkv, size)."""
        raise NotImplementedError

    def products(self, q: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        """Vectors whose largest product is a block's worth, (N, sets, M, Hkv / sets * size).

        Scaled queries q are (N, Hkv, G, D).
        """
        raise NotImplementedError


class SinkBlocks(BlockPolicy):
    """Reads what `attention.Sink` reads with "absolute" positions and sinks of whole blocks.

    A kernel that knows windows leaves out the oldest tokens of its table. The block in which the
    window begins is therefore the first of the table, before the sinks.
    """

    kind: ClassVar[type[Backend]] = Sink

    def check(self) -> None:
        require(not self.method.turns_keys, "positions", self.method.positions, _ABSOLUTE)
        self._require_whole("sinks", self.sinks)
        # A window within the last block begins and ends there, and only one end of a table is cut.
        least = self.sinks + self.block
        allowed = f"at least sinks and the engine's block of {self.block} tokens, {least}"
        require(not self.sinks or self.window >= least, "budget", self.window, allowed)

    @property
    def sinks(self) -> int:
        return int(self.method.sinks)

    @property
    def window(self) -> int:
        return int(self.method.budget)

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        first = self.sinks // self.block
        begin = (seen - self.window + self.sinks) // self.block
        return np.full_like(seen, first), np.maximum(begin, first)

    def leaves_out(self, seen: Counts) -> Mask:
        mask: Mask = seen > self.window
        return mask

    def tokens_read(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.window)


class WindowBlocks(SinkBlocks):
    """Reads what `attention.Window` reads: `sink` without sinks."""

    kind: ClassVar[type[Backend]] = Window

    def check(self) -> None:
        """Any window can be kept."""

    @property
    def sinks(self) -> int:
        return 0


class QuestBlocks(BlockPolicy):
    """Reads what `attention.Quest` reads with pages of a block and a choice per KV head."""

    kind, grain, grows = Quest, "page", "amax"

    def check(self) -> None:
        page, gqa = self.method.page, self.method.gqa
        require(page == self.block, "page", page, f"{self.block}, the engine's block")
        allowed = "'sum', 'mean' or 'max': a table is one KV head's, of all its query heads"
        require(gqa != "query_head", "gqa", gqa, allowed)

    @property
    def best(self) -> int:
        return int(self.method.budget) // self.block - 1

    def sets(self, Hkv: int) -> int:
        return Hkv

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        return np.zeros_like(seen), -(-seen // self.block) - 1

    def size(self, D: int) -> int:
        return 2 * D

    def summands(self, k: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        # Maxima of k and of -k.
        del positions, rope
        return torch.cat((k, -k), dim=-1)

    def products(self, q: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        # The sum over D of max(q max_k, q min_k) is relu(q).max_k + relu(-q).max(-k).
        del positions, rope
        signed = torch.cat((q, -q), dim=-1).relu_()
        return signed if self.method.gqa == "max" else signed.sum(2, keepdim=True)


class InfLLMBlocks(BlockPolicy):
    """Reads what `attention.InfLLM` reads with blocks of an engine and keys where they were seen.

    A representative is the mean of all keys of a block, since the probability that each received is
    not known outside an engine's kernel. Keys are turned to position 0, against the query at
    distance n_local - 1, as in the method.
    """

    kind, grain, grows, turns = InfLLM, "block", "sum", True

    def check(self) -> None:
        method = self.method
        far = method.far_position
        require(far == "absolute", "far_position", far, _ABSOLUTE)
        own = f"{self.block}, the engine's block"
        require(method.block == self.block, "block", method.block, own)
        allowed = f"block = {self.block}: an engine tells no probabilities to choose keys by"
        require(method.repr_topk >= self.block, "repr_topk", method.repr_topk, allowed)
        self._require_whole("n_init", method.n_init)
        require(method.topk >= 1, "topk", method.topk, "at least 1; without any it is sink")

    @property
    def best(self) -> int:
        return int(self.method.topk)

    def sets(self, Hkv: int) -> int:
        return Hkv if self.method.selection == "kv_head" else 1

    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        method = self.method
        first = method.n_init // self.block
        blocked = np.maximum(seen - method.n_local - method.n_init, 0)
        # The newest block that left the window, of 1 to `block` tokens, is always read.
        full = np.maximum(-(-blocked // self.block) - 1, 0)
        return np.full_like(seen, first), first + full

    def size(self, D: int) -> int:
        return D

    def summands(self, k: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        assert rope is not None
        return rope.to_start(k, positions) / self.block

    def products(self, q: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        assert rope is not None
        N, Hkv = q.shape[:2]
        far = rope.shift(q, positions, self.method.n_local - 1).sum(2)
        sets = self.sets(Hkv)
        return far.view(N, sets, 1, Hkv // sets * far.shape[-1])


POLICIES: Mapping[str, type[BlockPolicy]] = {
    kind.kind.name: kind for kind in (InfLLMBlocks, QuestBlocks, SinkBlocks, WindowBlocks)
}


def policy_of(text: object, block: int) -> BlockPolicy:
    """The policy of a method as it is typed, `quest(budget=1024)`, over blocks of `block` tokens.

    Quest's `page` and InfLLM's `block` are the engine's by default; other defaults are the
    method's.

    Raises:
        InvalidValue: an unknown method or parameter, or one that cannot be kept by whole blocks.
    """
    if not isinstance(text, str):
        raise InvalidValue("attention", text, "a method with its parameters: 'quest(budget=1024)'")
    spec = METHODS.spec(text, "attention")
    if spec.name not in POLICIES:
        raise InvalidValue("attention", spec.name, f"one of {', '.join(POLICIES)}", list(POLICIES))
    kind = POLICIES[spec.name]
    params = {**({kind.grain: block} if kind.grain else {}), **spec.params}
    return kind(METHODS.get(spec.name, **params), block)
