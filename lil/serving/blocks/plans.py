"""How the tokens of a step are read, as a paged kernel takes it, on the device of the cache.

All of it but the choices follows from how many tokens requests have, so the host plans it without a
look at the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from attention.contract import Counts, top
from attention.core import devices
from attention.errors import InvalidValue
from lil.serving.blocks.policy import BlockPolicy
from lil.serving.blocks.steps import Queries, table
from lil.serving.blocks.summaries import Summaries


@dataclass
class ReadPlan:
    """The queries of a step that read less than everything, as requests of a kernel.

    Where each KV head makes a choice of its own it is a request by itself, of Hkv for a query, over
    a cache whose heads are blocks (`head_by_head`).

    Attributes:
        tokens: where they lie among the step's tokens, (N,); None where all tokens are such.
        positions: of the queries, (N,).
        blocks: of the cache, (N, U), those of the gap yet to be chosen.
        first, best: the columns of those.
        gap: blocks of the cache in the gaps, (N, P).
        beyond: where gaps are shorter than P, (N, 1, P).
        sets: choices of a query; 0 where none is made.
        starts, lengths: of the requests, (R + 1,) and (R,), R being N times the choices.
        longest: the largest length.
        prepared: what a kernel was told of them ahead, where one is.
    """

    tokens: Tensor | None
    positions: Tensor
    blocks: Tensor
    first: int
    best: int
    gap: Tensor
    beyond: Tensor
    sets: int
    starts: Tensor
    lengths: Tensor
    longest: int
    prepared: Any = None

    @classmethod
    def of(cls, policy: BlockPolicy, found: Queries, owned: Tensor, Hkv: int) -> Self:
        """The plan of a step's queries.

        Args:
            policy: what they read.
            found: the queries, at least one.
            owned: blocks of the step's rows, (rows, blocks).
            Hkv: KV heads.
        """
        device = owned.device
        numbers, first, best = table(policy, found.seen)
        mine = owned[devices.put(found.row, device)].long()
        gap, beyond = mine[:, :0], mine[:, None, :0].bool()
        if best:
            gap, beyond = _gaps(mine, *policy.gap(found.seen))
        sets = policy.sets(Hkv) if best else 0
        lengths = policy.tokens_listed(found.seen).astype(np.int32).repeat(max(sets, 1))
        starts = np.arange(len(lengths) + 1, dtype=np.int32)
        return cls(
            tokens=devices.put(found.token, device) if found.full.any() else None,
            positions=devices.put(found.seen - 1, device),
            blocks=mine.gather(1, devices.put(numbers, device)),
            first=first,
            best=best,
            gap=gap,
            beyond=beyond,
            sets=sets,
            starts=devices.put(starts, device),
            lengths=devices.put(lengths, device),
            longest=int(lengths.max()),
        )

    def tables(self, q: Tensor, scale: float, summaries: Summaries | None) -> Tensor:
        """The blocks that each request reads, (R, U).

        Args:
            q: queries, (N, Hkv, G, D).
            scale: of their products.
            summaries: of the layer, where choices are made.
        """
        if not self.sets:
            return self.blocks.to(torch.int32)
        assert summaries is not None
        worth = summaries.worth(q.float() * scale, self.positions, self.gap)
        _, index = top(worth.masked_fill(self.beyond, float("-inf")), self.best)
        blocks = self.blocks[:, None].expand(-1, self.sets, -1).clone()
        chosen = self.gap[:, None].expand(-1, self.sets, -1).gather(2, index)
        blocks[:, :, self.first : self.first + self.best] = chosen
        if self.sets > 1:
            blocks = blocks * self.sets + torch.arange(self.sets, device=blocks.device)[:, None]
        return blocks.flatten(0, 1).to(torch.int32)


def _gaps(mine: Tensor, first: Counts, behind: Counts) -> tuple[Tensor, Tensor]:
    """Blocks in the gaps of queries, (N, P), and where a gap is shorter than P, (N, 1, P).

    Their numbers are made on the device: of long gaps there are many, and copying them takes a
    while.

    Args:
        mine: blocks of each query's row, (N, blocks).
        first, behind: where the gaps begin and the first block behind, (N,).
    """
    width = int((behind - first).max())
    begin, end = (devices.put(x, mine.device)[:, None] for x in (first, behind))
    number = begin + torch.arange(width, device=mine.device)
    return mine.gather(1, torch.minimum(number, end - 1)), (number >= end)[:, None]


@dataclass
class StepReads:
    """How the tokens of a step are read.

    Attributes:
        positions: of all tokens, (T,), where something is remembered of their keys.
        full: the tokens that are read in full, where not all are, (F,).
        sparse: the others; None for none.
    """

    positions: Tensor | None = None
    full: Tensor | None = None
    sparse: ReadPlan | None = None

    @staticmethod
    def planned(
        policy: BlockPolicy,
        found: Queries,
        past: Counts,
        new: Counts,
        owned: Tensor,
        Hkv: int,
    ) -> StepReads:
        """Those of a step in which each row, R of them, has new tokens.

        Args:
            policy: what queries read.
            found: the step's queries.
            past, new: tokens before the step and in it, (R,).
            owned: blocks of the rows, (R, blocks).
            Hkv: KV heads.
        """
        positions, full, device = None, None, owned.device
        if policy.best:
            begin = np.cumsum(new) - new
            positions = devices.put(np.arange(new.sum()) - np.repeat(begin - past, new), device)
        if len(found) and found.full.any():
            kept = np.ones(int(new.sum()), dtype=bool)
            kept[found.token] = False
            full = devices.put(np.flatnonzero(kept), device)
        sparse = ReadPlan.of(policy, found, owned, Hkv) if len(found) else None
        return StepReads(positions, full, sparse)


def head_by_head(kv_cache: Tensor) -> Tensor:
    """A cache of blocks of Hkv heads as one of Hkv times as many blocks of one head each.

    Args:
        kv_cache: (blocks, Hkv, tokens, numbers).

    Raises:
        InvalidValue: the heads of a block and the blocks do not follow each other evenly.
    """
    count, Hkv, block, both = kv_cache.shape
    if kv_cache.stride(0) != Hkv * kv_cache.stride(1):
        allowed = "one in which the heads of all blocks lie evenly spaced, HND"
        raise InvalidValue("kv_cache_layout", tuple(kv_cache.stride()), allowed)
    strides = (kv_cache.stride(1), kv_cache.stride(1), kv_cache.stride(2), kv_cache.stride(3))
    return kv_cache.as_strided((count * Hkv, 1, block, both), strides)
