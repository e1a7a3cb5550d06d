"""How the tokens of a step are read, as a paged kernel takes it.

All of it but the choices follows from how many tokens requests have, so the host plans a step
without a look at the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention.contract import Counts, top
from attention.core import devices
from lil.serving.blocks.policies import BlockPolicy
from lil.serving.blocks.summaries import Summaries

#: A prompt that never ends: everything of the request is read in full.
WHOLE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Queries:
    """The decode queries of a step that read less than everything, (N,) each.

    `token` is a query's place among the step's tokens, `row` its request's, `seen` how many tokens
    it sees, and `full` (R,) how many tokens of a row are read in full, before its queries.
    """

    token: Counts
    row: Counts
    seen: Counts
    full: Counts

    def __len__(self) -> int:
        return len(self.token)

    def in_full(self, past: Counts) -> tuple[Counts, Counts, Counts]:
        """Rows with tokens that are read in full, how many, and how many the last of them sees."""
        rows = np.flatnonzero(self.full)
        return rows, self.full[rows], past[rows] + self.full[rows]


def queries(policy: BlockPolicy, past: Counts, new: Counts, prompt: Counts) -> Queries:
    """The queries of a step: tokens before it, in it, and of prompts, (R,) each.

    A token of the prompt is read in full. A generated token is a decode query, also where its
    request was put back and it comes among others: only then are its key and value the same.
    """
    row = np.repeat(np.arange(len(new)), new)
    begin = np.cumsum(new) - new
    position = np.arange(len(row)) - begin[row] + past[row]
    sparse = (position >= prompt[row]) & policy.leaves_out(position + 1)
    token = np.flatnonzero(sparse)
    full = new - np.bincount(row[token], minlength=len(new))
    return Queries(token, row[token], position[token] + 1, full)


def table(policy: BlockPolicy, seen: Counts) -> tuple[npt.NDArray[np.int64], int]:
    """The blocks that N queries read, by their number in the request, (N, U).

    Rows are filled up with their last block. The best blocks of the gap belong into `policy.best`
    columns, whose numbers mean nothing yet; the second result is the first of them.
    """
    start, end = policy.gap(seen)
    # Blocks before the gap are the same number for all that read less than everything.
    first, best = int(start[0]), policy.best
    column = np.arange(int(policy.blocks_read(seen).max()))
    if policy.window is None:
        ahead, behind = column < first + best, column - first - best
    else:
        column = column - 1
        ahead, behind = (column >= 0) & (column < first), np.maximum(column - first + 1, 0)
    numbers = np.where(ahead, column, end[:, None] + behind)
    last = -(-seen // policy.block) - 1
    return np.minimum(numbers, last[:, None]), first


@dataclass
class ReadPlan:
    """The queries of a step that read less than everything, as requests of a kernel.

    Where each KV head makes a choice of its own it is a request by itself, Hkv for a query, over a
    cache whose heads are blocks (`head_by_head`).
    """

    tokens: Tensor | None  # places among the step's tokens, (N,); None where all are queries
    positions: Tensor  # (N,)
    blocks: Tensor  # of the cache, (N, U); those of the gap are yet to be chosen
    first: int  # column of the `best` blocks of the gap
    best: int
    gap: Tensor  # blocks in the gaps, (N, P)
    beyond: Tensor  # where a gap is shorter than P, (N, 1, P)
    sets: int  # choices of a query; 0 where there is none
    starts: Tensor  # of the R requests, (R + 1,)
    lengths: Tensor  # (R,)
    longest: int
    prepared: Any = None  # the kernel's own schedule of the requests

    @classmethod
    def of(cls, policy: BlockPolicy, step: Queries, owned: Tensor, Hkv: int) -> Self:
        """The plan of at least one query; owned are the blocks of the rows, (R, blocks)."""
        device = owned.device
        numbers, first = table(policy, step.seen)
        own = owned[devices.put(step.row, device)].long()
        gap, beyond = own[:, :0], own[:, None, :0].bool()
        if policy.best:
            gap, beyond = _gaps(own, *policy.gap(step.seen))
        sets = policy.sets(Hkv) if policy.best else 0
        lengths = policy.tokens_listed(step.seen).astype(np.int32).repeat(max(sets, 1))
        starts = np.arange(len(lengths) + 1, dtype=np.int32)
        return cls(
            tokens=devices.put(step.token, device) if step.full.any() else None,
            positions=devices.put(step.seen - 1, device),
            blocks=own.gather(1, devices.put(numbers, device)),
            first=first,
            best=policy.best,
            gap=gap,
            beyond=beyond,
            sets=sets,
            starts=devices.put(starts, device),
            lengths=devices.put(lengths, device),
            longest=int(lengths.max()),
        )

    def tables(self, q: Tensor, scale: float, summaries: Summaries | None) -> Tensor:
        """The blocks that each request reads, (R, U), by queries (N, Hkv, G, D)."""
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


def _gaps(own: Tensor, start: Counts, end: Counts) -> tuple[Tensor, Tensor]:
    """Blocks in the gaps of queries, (N, P), and where a gap is shorter than P, (N, 1, P).

    Their numbers are made on the device: of long gaps there are many, and copying takes a while.
    """
    width = int((end - start).max())
    begin, stop = (devices.put(x, own.device)[:, None] for x in (start, end))
    number = begin + torch.arange(width, device=own.device)
    return own.gather(1, torch.minimum(number, stop - 1)), (number >= stop)[:, None]


@dataclass
class StepReads:
    """How the tokens of a step are read.

    `positions` (T,) are for summaries of blocks, `full` (F,) are the tokens that are read in full
    where not all are, and `sparse` has the others.
    """

    positions: Tensor | None = None
    full: Tensor | None = None
    sparse: ReadPlan | None = None

    @staticmethod
    def planned(
        policy: BlockPolicy, step: Queries, past: Counts, new: Counts, owned: Tensor, Hkv: int
    ) -> StepReads:
        """The reads of a step; owned are the blocks of the rows, (R, blocks)."""
        positions, full, device = None, None, owned.device
        if policy.best:
            begin = np.cumsum(new) - new
            positions = devices.put(np.arange(new.sum()) - np.repeat(begin - past, new), device)
        if len(step) and step.full.any():
            mask = np.ones(int(new.sum()), dtype=bool)
            mask[step.token] = False
            full = devices.put(np.flatnonzero(mask), device)
        sparse = ReadPlan.of(policy, step, owned, Hkv) if len(step) else None
        return StepReads(positions, full, sparse)


def head_by_head(kv_cache: Tensor) -> Tensor:
    """A cache (blocks, Hkv, tokens, numbers) as Hkv times as many blocks of one head each."""
    count, Hkv, block, numbers = kv_cache.shape
    strides = (kv_cache.stride(1), kv_cache.stride(1), kv_cache.stride(2), kv_cache.stride(3))
    return kv_cache.as_strided((count * Hkv, 1, block, numbers), strides)
