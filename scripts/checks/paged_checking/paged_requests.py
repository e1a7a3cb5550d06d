"""Requests in the places of an engine, until all have ended, through one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from paged_layers import Heads, Metadata, Paged
from torch import Tensor

from lil.serving.blocks import (
    WHOLE,
    BlockPolicy,
    Queries,
    StepReads,
    in_full_rows,
    queries,
)

PLACES = 3
#: Steps with decode queries that are not held to it that nothing waits.
WARMING = 2
#: What outputs hold that nobody writes.
UNWRITTEN = 7.0


@dataclass
class Request:
    """A prompt, all of the tokens that are known at first, and all there will ever be."""

    prompt: int
    known: int
    end: int
    whole: bool = False
    past: int = 0
    owned: list[int] = field(default_factory=list)

    def drawn(self, heads: Heads, dtype: torch.dtype, device: str) -> Request:
        """With its queries, keys and values."""
        shapes = (heads.Hkv * heads.G, heads.Hkv, heads.Hkv)
        self.q, self.k, self.v = (
            torch.randn(self.end, H, heads.D, device=device).to(dtype) for H in shapes
        )
        return self


def requests(block: int, stretch: int) -> list[Request]:
    """Ragged: long and short, one in full, one put back; the last come into used blocks.

    Args:
        block: tokens of a block; a short one begins to choose while it is read.
        stretch: how much longer the long ones are than where no time is.
    """

    def one(tokens: int, more: int, known: int = 0, whole: bool = False) -> Request:
        prompt = tokens * stretch - 3
        return Request(prompt, prompt + known, prompt + known + more, whole)

    short = 8 * block - 6
    return [
        one(300, 24),
        Request(short, short, short + 20),
        one(140, 14, known=40),  # generated tokens are read again beside those of the prompt
        one(180, 22, whole=True),
        one(130, 33),
        one(230, 26),
    ]


@dataclass
class Step:
    """What a step was and gave.

    Attributes:
        rows: its requests.
        new: tokens of each.
        found: the decode queries that read less than everything.
        q, out: of all tokens.
        cache: as it is behind the step.
        meta: what the layer was told.
    """

    rows: list[Request]
    new: NDArray[np.int64]
    found: Queries
    q: Tensor
    out: Tensor
    cache: Tensor
    meta: Metadata


@dataclass
class Served:
    """Counts of a run."""

    steps: int = 0
    guarded: int = 0
    padding_written: bool = False
    compared_by: str | None = None


def step_of(
    rows: list[Request], new: NDArray[np.int64], policy: BlockPolicy, Hkv: int, device: str
) -> tuple[Metadata, Queries]:
    """What the engine's builder and the plan say of a step."""
    past = np.array([one.past for one in rows])
    table = np.zeros((len(rows), max(len(one.owned) for one in rows)), dtype=np.int32)
    for row, one in enumerate(rows):
        table[row, : len(one.owned)] = one.owned
    owned = torch.from_numpy(table).to(device)
    prompts = np.array([WHOLE if one.whole else one.prompt for one in rows])
    found = queries(policy, past, new, prompts)
    reads = StepReads.planned(policy, found, past, new, owned, Hkv)
    kept, count, lengths = in_full_rows(found, past)
    block = policy.block
    places = [
        one.owned[at // block] * block + at % block
        for one, more in zip(rows, new.tolist(), strict=True)
        for at in range(one.past, one.past + more)
    ]
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(count)))
    meta = Metadata(
        **vars(reads),
        num_actual_tokens=int(new.sum()),
        query_start_loc=torch.from_numpy(starts.astype(np.int32)).to(device),
        seq_lens=torch.from_numpy(lengths.astype(np.int32)).to(device),
        max_query_len=int(count.max(initial=0)),
        max_seq_len=int(lengths.max(initial=0)),
        block_table=owned[torch.from_numpy(kept).to(device)],
        slot_mapping=torch.tensor([*places, -1], device=device),  # and one of padding
    )
    return meta, found


@contextmanager
def nothing_waits(on: bool) -> Iterator[None]:
    """Whatever waits for the device in here raises."""
    if not on:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def serve(
    every: list[Request],
    layer: Paged,
    heads: Heads,
    chunk: int,
    guard: bool,
    look: Callable[[Step], None],
) -> Served:
    """Requests in three places until all have ended.

    Args:
        every: the requests, drawn.
        layer: computes.
        heads: of the layer.
        chunk: tokens of a prompt in a step.
        guard: whether a step that waits for the device raises.
        look: is shown each step.
    """
    policy, block, Hkv = layer.policy, layer.policy.block, heads.Hkv
    device, dtype = every[0].q.device, every[0].q.dtype
    sizes = sorted(-(-one.end // block) for one in every)
    pool = sum(sizes[-PLACES:]) + 1
    # Blocks that were used before hold what is far from all that is read.
    cache = (50 * torch.randn(pool, Hkv, block, 2 * heads.D, device=device)).to(dtype)
    free, waiting = np.random.default_rng(7).permutation(pool).tolist(), list(every)
    running, told, chosen = list[Request](), Served(), 0
    padding = torch.full((1, Hkv, heads.D), 1e4, dtype=dtype, device=device)
    while waiting or running:
        while waiting and len(running) < PLACES:
            running.append(waiting.pop(0))
        new = np.array([min(chunk, max(one.known - one.past, 1)) for one in running])
        for one, more in zip(running, new.tolist(), strict=True):
            while len(one.owned) * block < one.past + more:
                one.owned.append(free.pop())
        meta, found = step_of(running, new, policy, Hkv, str(device))
        some = [slice(a.past, a.past + n) for a, n in zip(running, new.tolist(), strict=True)]
        q, k, v = (
            torch.cat([getattr(one, name)[at] for one, at in zip(running, some, strict=True)])
            for name in "qkv"
        )
        slots = meta.slot_mapping[:-1]
        cache[slots // block, :, slots % block] = torch.cat((k, v), dim=-1)
        q, k, v = torch.cat((q, q[:1])), torch.cat((k, padding)), torch.cat((v, padding))
        out = torch.full_like(q, UNWRITTEN)
        chosen += len(found) > 0
        held = guard and len(found) > 0 and chosen > WARMING
        with nothing_waits(held):
            layer.forward(None, q, k, v, cache, meta, out)
        told.steps += 1
        told.guarded += held
        told.padding_written |= not bool((out[-1] == UNWRITTEN).all())
        look(Step(running, new, found, q[:-1], out[:-1], cache, meta))
        for one, at in zip(running, some, strict=True):
            one.past = at.stop
        for one in [one for one in running if one.past == one.end]:
            running.remove(one)
            free += one.owned
    return told
