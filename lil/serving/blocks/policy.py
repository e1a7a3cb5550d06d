"""What a decode query reads of a cache that an engine keeps in blocks.

Every policy leaves out one stretch of whole blocks, the gap, and reads the best few blocks of it.
How long the gap is and how many are read follows from the tokens seen alone, so an engine can plan
a step on the host; which blocks are the best, where any are read, is each layer's matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attention.contract import Backend, Counts
from attention.errors import InvalidValue, check_int
from lil.serving.blocks.ropes import RopeTable

#: Yes or no for each of N.
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BlockPolicy(ABC):
    """A method of `attention` over the blocks of an engine's cache.

    Args:
        method: its parameters.
        block: tokens of a block.

    Raises:
        InvalidValue: a parameter that cannot be kept by whole blocks.
    """

    kind: ClassVar[type[Backend]]

    #: How what is remembered of a block grows with its tokens: "amax" or "sum"; None for nothing.
    grows: ClassVar[str | None] = None
    #: Whether keys have to be turned to another position for it.
    turns: ClassVar[bool] = False

    method: Any
    block: int

    def __post_init__(self) -> None:
        check_int("block", self.block, 1)
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Refuse what cannot be done by whole blocks.

        Raises:
            InvalidValue: a parameter that cannot be kept.
        """

    @abstractmethod
    def gap(self, seen: Counts) -> tuple[Counts, Counts]:
        """First block of the gap and first block behind it, (N,) each, of queries that see so much.

        Args:
            seen: tokens, the query's own included, (N,).
        """

    @property
    def best(self) -> int:
        """Blocks of the gap that are read."""
        return 0

    @property
    def window(self) -> int | None:
        """Tokens at the end of a query's table that are read; None where all of it is.

        Such a table begins with the first block behind the gap, some of whose tokens are left out.
        """
        return None

    @property
    def gives_back(self) -> bool:
        """Whether a block of the gap is never read again."""
        return self.best == 0

    def sets(self, Hkv: int) -> int:  # noqa: ARG002
        """How many choices a query makes: one for the layer, or one per KV head."""
        return 1

    def leaves_out(self, seen: Counts) -> Mask:
        """Which queries read less than everything, (N,)."""
        start, end = self.gap(seen)
        found: Mask = end - start > self.best
        return found

    def blocks_read(self, seen: Counts) -> Counts:
        """Blocks a query's table lists, (N,)."""
        start, end = self.gap(seen)
        out = np.where(self.leaves_out(seen), np.maximum(end - start - self.best, 0), 0)
        read: Counts = -(-seen // self.block) - out
        return read

    def tokens_listed(self, seen: Counts) -> Counts:
        """Tokens of the blocks a query's table lists, (N,): the last is the only one begun."""
        listed: Counts = seen - (-(-seen // self.block) - self.blocks_read(seen)) * self.block
        return listed

    def tokens_read(self, seen: Counts) -> Counts:
        """Keys a query reads, (N,)."""
        return self.tokens_listed(seen)

    def blocks_compared(self, seen: Counts) -> Counts:
        """Blocks whose worth a query computes, (N,)."""
        start, end = self.gap(seen)
        compared: Counts = np.where(self.leaves_out(seen) & (self.best > 0), end - start, 0)
        return compared

    # What is remembered of a block, where any of the gap are read

    def size(self, D: int) -> int:
        """Numbers remembered of a block, per KV head."""
        raise NotImplementedError

    def remembered(self, k: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        """What each key adds to what is remembered of its block, (T, Hkv, size).

        Args:
            k: keys as the engine stores them, (T, Hkv, D).
            positions: theirs, (T,).
            rope: turns keys, where the policy asks for it.
        """
        raise NotImplementedError

    def products(self, q: Tensor, positions: Tensor, rope: RopeTable | None) -> Tensor:
        """Vectors of which a block is worth the largest product, (N, sets, M, Hkv / sets * size).

        Args:
            q: scaled queries, (N, Hkv, G, D).
            positions: theirs, (N,).
            rope: as above.
        """
        raise NotImplementedError


def check_whole(field: str, value: int, block: int) -> None:
    """Check that a number of tokens is one of whole blocks.

    Raises:
        InvalidValue: it is not.
    """
    if value % block:
        raise InvalidValue(field, value, f"a multiple of the engine's block of {block} tokens")


def check_dense(method: Backend, names: tuple[str, ...] = ()) -> None:
    """Check that parameters which no cache of an engine can follow have their neutral value.

    Raises:
        InvalidValue: one has not.
    """
    for name in ("keep_prompt", *names):
        if getattr(method, name, False):
            raise InvalidValue(name, getattr(method, name), "False inside an engine")
