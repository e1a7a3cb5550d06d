"""InfLLM: a window, the first tokens, and the blocks whose representatives fit the query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    AUTO,
    QKV,
    AttentionOutput,
    Backend,
    Choice,
    Choosing,
    Counts,
    Geometry,
    InvalidValue,
    Step,
    Turn,
    check_choice,
    check_int,
    devices,
    fixed,
    gpu,
    group,
    rotate,
    row_lists,
    take_pages,
    top,
)


class InfLLMLayer(Choosing):
    """Attends to the window at true distances and to the far tokens chosen at one distance.

    The window is in a ring, roped; far tokens are in pages, turned to position 0. The first pages
    hold the first tokens, the others a block each. A token that leaves the window is turned and
    moved once, so that nothing is turned when it is read.
    """

    keeps_all = True

    def __init__(self, geometry: Geometry, backend: InfLLM) -> None:
        super().__init__(geometry, backend)
        self.n_init, self.n_local = backend.n_init, backend.n_local
        self.block = self.page = backend.block
        self.topk, self.repr_topk = backend.topk, backend.repr_topk
        # Sets of blocks that a query chooses.
        self.sets = sets = geometry.Hkv if backend.selection == "kv_head" else 1
        # Far tokens are at true distances too; choosing is as ever.
        self.absolute = backend.far_position == "absolute"
        # Pages of the first tokens, and slots of these that never hold one.
        self.init_pages = -(-self.n_init // self.block)
        self.spare = self.init_pages * self.block - self.n_init
        D, wide = geometry.D, geometry.wide
        self.near_k = self.slots("near_k", (D,), limit=self.n_local)
        self.near_v = self.slots("near_v", (D,), limit=self.n_local)
        self.mass = self.slots("mass", dtype=wide, limit=self.n_local)
        self.far_k = self.slots("far_k", (D,), multiple=self.block)
        self.far_v = self.slots("far_v", (D,), multiple=self.block)
        # The mass with which the tokens of the newest block left the window.
        self.left_mass = self.slots("left_mass", dtype=wide, limit=self.block)
        # KV heads of a set side by side: the sum over them is part of the product with the query.
        tail = (geometry.Hkv * D // sets,)
        self.means = self.slots("means", tail, heads=sets, dtype=wide, unit=self.block)

    # Steps whose lengths are on the device

    @property
    def on_device(self) -> bool:  # type: ignore[override]
        return not self.absolute and self.n_local >= self.spare

    def dense(self, step: Step) -> bool:
        return step.longest <= self.n_local

    def check(self, step: Step) -> None:
        self.spend(int(self.reads(step.seen).max()))

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        self.geometry.rope.table(counts.tokens, self.near_k.data)  # before `step` asks for it
        learns = gpu.Eviction("mass", memory=fixed(self.mass)[0])
        near = (self.near_k, self.near_v, counts.seen, self.n_local)
        return self.store_of(*near, "stored", eviction=learns)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        assert self.store is not None
        near = fixed(self.near_k, self.near_v, self.mass)
        far = far_k, far_v, *_ = fixed(self.far_k, self.far_v, self.left_mass, self.means)
        turn = self.geometry.rope.table(counts.tokens, far_k)
        seen, live = counts.seen, counts.live
        scores = gpu.choices().estimate_blocks(
            q, k, v, scaling, near, far, turn, seen, live, self.n_init, self.repr_topk
        )
        if counts.dense:
            return gpu.attend(counts, self.store, q, k, v, scaling)
        options = {"page": self.block, "n_init": self.n_init, "window": self.n_local}
        self.traces = table, read = gpu.choices().select(
            scores, seen, live, self.topk, heads=self.geometry.Hkv, **options
        )
        pages = gpu.Pages(far_k, far_v, table, read, self.block, self.n_init, turn)
        return gpu.attend(counts, self.store, q, k, v, scaling, pages)

    # Decode

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        g = self.geometry
        self.make_room(step)
        self.push_out(step, self.near_k.data, self.near_v.data, self.mass.data)
        here = step.memo("near slot", lambda: step.past % self.n_local)
        at = step.flat(here, g.Hkv, self.near_k.capacity, "near")
        g.engine.put(((self.near_k, k), (self.near_v, v), (self.mass, None)), at)
        self.represent(step, self.left_mass.data)

        query, near, far, read = group(q, g.Hkv, scaling), step.occupancy(self.n_local), None, 0
        self.chosen = None
        if step.longest > self.n_local:
            far, read = self.attend_far(query, step)
        self.spend(near.most + read)
        qkv = QKV(query, self.near_k.data, self.near_v.data, g.sink_logits)
        return g.engine.attend_with_mass(qkv, near, self.mass.data, far)

    def attend_far(self, query: Tensor, step: Step) -> tuple[AttentionOutput, int]:
        """What the query gets of far tokens, and how many it may read."""
        g, B = self.geometry, step.rows

        def turn() -> Turn:
            """From its position to n_local - 1, for keys at position 0."""
            start, end = step.past_tokens[:, None], range(self.n_local - 1, self.n_local)
            return g.rope.turn_each(start, step.longest, end, query)

        per_row = query.view(B, g.Hq, 1, g.D)
        far = g.engine.rotate(per_row, step.memo("far query", turn)).view(query.shape)
        full = step.memo("full blocks", lambda: self.full_blocks(step.seen))
        if full.max() <= self.topk:
            pages, counts = step.memo("all pages", lambda: self.all_pages(step))
        else:
            pages, counts = self.choose(far, full, step)
            self.chosen = Choice(pages, counts > 0, counts)
        keys, values, slots = self.far_k.data, self.far_v.data, pages.shape[2] * self.block
        every, each = (x.expand(B, g.Hkv, -1) for x in (pages, counts))
        if self.absolute:
            keys, values = (x.view(B, g.Hkv, slots, -1) for x in self.placed(every))
            every = torch.arange(pages.shape[2], device=step.device).expand(B, g.Hkv, -1)
            far = query
        qkv = QKV(far, keys, values)
        read = slots - max(0, min(self.spare, slots - self.n_init))
        return g.engine.attend_pages(qkv, every, each, self.block, lse=True), read

    def all_pages(self, step: Step) -> tuple[Tensor, Tensor]:
        """Every page that has been begun, (1, 1, U), and the tokens on it, (B, 1, U)."""
        most = int(self.far_slot(self.left(step.seen).max() - 1)) // self.block + 1
        pages = np.arange(most)[None]
        return step.tensor(pages)[None], step.tensor(self.on_pages(pages, step.seen))[:, None]

    def on_pages(self, pages: Counts, seen: Counts) -> Counts:
        """Tokens on pages of these numbers, (B or 1, U) to (B, U)."""
        first = pages < self.init_pages
        start = np.where(first, pages, pages - self.init_pages) * self.block
        firsts, blocked = np.minimum(self.left(seen), self.n_init), self.blocked(seen)
        counts: Counts = np.where(first, firsts[:, None], blocked[:, None]) - start
        return counts.clip(0, self.block)

    def placed(self, pages: Tensor) -> list[Tensor]:
        """Copies of pages (B, Hkv, U), keys turned to where their tokens were."""
        keys, values = take_pages((self.far_k.data, self.far_v.data), pages, self.block)
        end = self.far_position(self.page_slots(pages)).flatten(0, 1)
        turn = self.geometry.rope.turn(range(1), end, keys)
        return [rotate(keys[:, None], turn)[:, 0], values]

    def page_slots(self, pages: Tensor) -> Tensor:
        """Slots of pages (..., U), (..., U * block)."""
        offset = torch.arange(self.block, device=pages.device)
        return (pages[..., None] * self.block + offset).flatten(-2)

    def choose(self, far: Tensor, full: Counts, step: Step) -> tuple[Tensor, Tensor]:
        """Pages of each set, and the tokens to read of each, (B, sets, U)."""
        g, B, sets = self.geometry, step.rows, self.sets
        summed = far.to(g.wide).sum(2).view(B, sets, 1, -1)
        competing = step.holding(full, "blocks")

        def always() -> tuple[Tensor, Tensor]:
            """The first pages and the newest, and their tokens."""
            firsts = np.broadcast_to(np.arange(self.init_pages), (B, self.init_pages))
            pages = np.concatenate((firsts, full[:, None] + self.init_pages), axis=1)
            return step.tensor(pages), step.tensor(self.on_pages(pages, step.seen))

        return g.engine.best_pages(
            summed,
            self.means.data,
            competing,
            self.topk,
            step.memo("always", always),
            self.block,
            first=self.init_pages,
            narrow=True,
        )

    # Prefill

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        past, g = step.past, self.geometry
        keys = step.join(self.in_order(self.far_k.data, self.near_k.data, past, True), past, k)
        values = step.join(self.in_order(self.far_v.data, self.near_v.data, past, False), past, v)
        last, square = step.last_visible(past, "all"), not past.any() and not step.padded
        out, grouped = g.engine.dense_with_mass(
            q, keys, values, scaling, last, square, step.real(), self.n_local, g.sink_logits
        )
        mass, N = grouped.sum(2), keys.shape[2]
        ring, left = (self.mass, past, 0), (self.left_mass, self.left(past), self.n_init)
        for slots, behind, first in (ring, left):  # what tokens had got before
            size = slots.capacity
            rows, position = _ranges(np.maximum(behind - size, 0), behind)
            before = slots.flat.index_select(0, self.flat(rows, (position - first) % size, size))
            mass.view(-1).index_add_(0, self.flat(rows, position, N), before)
        self.make_room(step)
        self.push_out(step, keys, values, mass)
        self.represent(step, mass[:, :, self.n_init :])
        rows, position = _ranges(self.left(step.seen), step.seen)
        start = self.flat(rows, position, N)
        end = self.flat(rows, position % self.n_local, self.near_k.capacity)
        for slots, source in ((self.near_k, keys), (self.near_v, values), (self.mass, mass)):
            slots.flat.index_copy_(0, end, source.flatten(0, 2).index_select(0, start))
        self.chosen = None
        return out

    # Which part a token is in

    def left(self, seen: Counts) -> Counts:
        """Tokens that have left the window, (B,)."""
        return np.maximum(seen - self.n_local, 0)

    def blocked(self, seen: Counts) -> Counts:
        """Tokens in blocks, the newest one included, (B,)."""
        return np.maximum(self.left(seen) - self.n_init, 0)

    def full_blocks(self, seen: Counts) -> Counts:
        """Blocks that compete: all but the newest, (B,)."""
        return np.maximum(-(-self.blocked(seen) // self.block) - 1, 0)

    def far_slot(self, position: Counts) -> Counts:
        """Slot among the pages of a token that left the window."""
        return np.where(position < self.n_init, position, position + self.spare)

    def far_position(self, slot: Tensor) -> Tensor:
        """Position of the token of a slot; a slot that holds none gets one beyond all tokens."""
        first = slot.masked_fill(slot >= self.n_init, torch.iinfo(torch.int64).max)
        return torch.where(slot < self.n_init + self.spare, first, slot - self.spare)

    # Leaving the window

    def make_room(self, step: Step) -> None:
        for slots in (self.near_k, self.near_v, self.mass):
            slots.fit(min(step.longest, self.n_local))
        gone = step.longest - self.n_local
        if gone > 0:
            self.left_mass.fit(self.block)
            for slots in (self.far_k, self.far_v):
                slots.fit(gone + (self.spare if gone > self.n_init else 0))
            self.means.fit(max(gone - self.n_init, 1))

    def push_out(self, step: Step, keys: Tensor, values: Tensor, mass: Tensor) -> None:
        """Move the tokens that leave the windows to the far pages.

        Args:
            keys, values, mass: (B, Hkv, n, ...), the token of position p in slot p modulo n.
        """
        if step.longest <= self.n_local:
            return
        n, g = keys.shape[2], self.geometry

        def leaving() -> tuple[Tensor, Tensor, Tensor, Tensor, Turn]:
            now = self.left(step.seen)
            rows, gone = _ranges(self.left(step.past), now)
            newest = gone >= now[rows] - self.block
            late, place = rows[newest], gone[newest]
            return (
                self.flat(rows, gone % n, n),
                self.flat(rows, self.far_slot(gone), self.far_k.capacity),
                self.flat(late, place % n, n),
                # First tokens write here too; a block overwrites all of it before it is read.
                self.flat(late, (place - self.n_init) % self.block, self.block),
                g.rope.turn_each(step.tensor(gone)[:, None], step.longest, range(1), keys),
            )

        start, end, late, rest, turn = step.memo("leaving", leaving)
        k, v = (x.flatten(0, 2).index_select(0, start) for x in (keys, values))
        k = g.engine.rotate(k.view(len(turn[0]), g.Hkv, 1, g.D), turn)
        g.engine.put(((self.far_k, k), (self.far_v, v.view(k.shape))), end)
        self.left_mass.flat.index_copy_(0, rest, mass.flatten().index_select(0, late))

    def represent(self, step: Step, mass: Tensor) -> None:
        """Compute the representatives of blocks whose last token just left the window.

        Args:
            mass: (B, Hkv, n), of token i behind the first ones in slot i modulo n.
        """
        n, D = mass.shape[2], self.geometry.D

        def filled() -> tuple[Tensor, Tensor, Tensor] | None:
            old, new = (self.blocked(seen) // self.block for seen in (step.past, step.seen))
            if (old == new).all():
                return None
            rows, number = _ranges(old, new)
            first = self.flat(rows, number * self.block % n, n)[:, None]
            return (
                self.flat(rows, number + self.init_pages, self.far_k.capacity // self.block),
                first + torch.arange(self.block, device=step.device),
                self.flat(rows, number, self.means.capacity, self.sets),
            )

        blocks = step.memo("filled", filled)
        if blocks is not None:
            pages, tokens, at = blocks
            keys = self.far_k.flat.view(-1, self.block * D).index_select(0, pages)
            keys, masses = keys.view(-1, self.block, D), mass.flatten()[tokens]
            means = mean_of_heaviest(keys, masses, self.repr_topk)
            self.means.flat.index_copy_(0, at, means.view(len(at), -1))

    def flat(self, rows: Counts, slot: Counts, capacity: int, heads: int | None = None) -> Tensor:
        """Index into `Slots.flat` of slots of rows, (N,) each, the same in all heads, (N * H,)."""
        H = self.geometry.Hkv if heads is None else heads
        index = (rows[:, None] * H + np.arange(H)) * capacity + slot[:, None]
        return devices.put(index.reshape(-1), self.geometry.device)

    def in_order(self, far: Tensor, near: Tensor, seen: Counts, turn: bool) -> Tensor:
        """Everything stored in order of position, keys roped as the model did, (B, Hkv, n, D).

        What left the window is turned back from position 0: equal to what the model gave but for
        the rounding of two turns, each to the model's dtype.
        """
        most, device = int(seen.max(initial=0)), far.device
        if not most:
            return near[:, :, :0]
        position = np.arange(most)[None]
        gone = position < self.left(seen)[:, None]
        slot = np.where(gone, self.far_slot(position), far.shape[2] + position % self.n_local)
        slot[position >= seen[:, None]] = 0
        both, index = torch.cat((far, near), dim=2), torch.as_tensor(slot, device=device)
        x = both.take_along_dim(index[:, None, :, None], dim=2)
        if not turn or not gone.any():
            return x
        places = torch.as_tensor(position, device=device)
        roped = rotate(x, self.geometry.rope.turn(range(1), places, x))
        return torch.where(torch.as_tensor(gone, device=device)[:, None, :, None], roped, x)

    def tokens(self, rows: Tensor, seen: Counts) -> tuple[Tensor, Tensor]:
        parts = (self.far_k, self.near_k, self.far_v, self.near_v)
        far_k, near_k, far_v, near_v = (slots.data.index_select(0, rows) for slots in parts)
        return self.in_order(far_k, near_k, seen, True), self.in_order(far_v, near_v, seen, False)

    # Accounting

    def reads(self, seen: Counts) -> Counts:
        full = self.full_blocks(seen)
        skipped: Counts = np.maximum(full - self.topk, 0) * self.block
        return seen - skipped

    def overhead(self, seen: Counts) -> Counts:
        full = self.full_blocks(seen)
        return np.where(full > self.topk, full, 0) * self.geometry.Hkv

    def row_bytes(self, seen: Counts) -> Counts:
        g = self.geometry
        complete = self.blocked(seen) // self.block
        rest = np.minimum(self.blocked(seen), self.block)
        masses = np.minimum(seen, self.n_local) + rest
        state = g.Hkv * (masses + complete * g.D) * g.wide.itemsize
        return super().row_bytes(seen) + state

    def read_positions(self, row: int, seen: int) -> Tensor:
        everything = self.kept_positions(row, seen)
        if self.chosen is None:
            return everything
        pages, listed = self.chosen.pages[row], self.chosen.live[row]
        left, far = max(seen - self.n_local, 0), self.far_position(self.page_slots(pages))
        live = listed.repeat_interleave(self.block, dim=-1) & (far < left)
        window = everything[: len(far), left:]
        live = torch.cat((live, torch.ones_like(window, dtype=torch.bool)), dim=-1)
        positions = row_lists(torch.cat((far, window), dim=-1), live)
        return positions.expand(self.geometry.Hkv, -1)


def mean_of_heaviest(keys: Tensor, mass: Tensor, k: int) -> Tensor:
    """The mean of the k keys with most mass, (N, block, D) and (N, block) to (N, D).

    Among equals the first ones. Masses are compared in float32, so that equals up to rounding are
    ties: text that repeats itself has equal keys in the first layer, and which one wins must not
    depend on the rounding of products, which changes with the number of rows.
    """
    index = top(mass.to(torch.float32), k)[1][..., None].expand(-1, -1, keys.shape[2])
    return keys.gather(1, index).to(mass.dtype).mean(1)


def _ranges(first: Counts, end: Counts) -> tuple[Counts, Counts]:
    """Rows, and numbers from `first` to below `end` of each, (N,) both."""
    n = end - first
    rows = np.arange(len(n)).repeat(n)
    return rows, np.arange(len(rows)) - (n.cumsum() - n - first).repeat(n)


@dataclass(frozen=True, kw_only=True)
class InfLLM(Backend):
    """Reads the last n_local tokens, the first n_init, the newest far block and topk others.

    InfLLM, arXiv 2402.04617; thunlp/InfLLM. A token that leaves the window joins the first tokens,
    then blocks; the newest block, of 1 to `block` tokens, is always read. A full block is
    represented, per KV head, by the mean of its `repr_topk` keys that received most probability
    while in the window, summed over the group; the authors have one per query head. Far keys are
    all seen at distance n_local - 1. One set of blocks serves the layer, by the sum over heads of
    query times representative. Unlike the authors' prefill ours is dense; it still collects that
    probability from it.

    Args:
        budget: tokens a decode query may read, current token included; at least 16.
        block: tokens per block; by default the power of two nearest sqrt(budget).
        topk: blocks chosen; budget // (2 block) - 1 by default.
        n_init: first tokens always read; budget // 16 within 4..32 by default.
        n_local: window, current token included; by default what the others leave of the budget.
        repr_topk: keys that make a representative, at most `block`; 4 by default.
        selection: "layer", one set of blocks for all heads; "kv_head", a set per KV head, by the
            sum over its group.
        far_position: "window", far keys are all at distance n_local - 1; "absolute", a mode for
            debugging, they keep the position they were seen at, so that attention is full while
            all blocks are read.
    """

    name: ClassVar[str] = "infllm"
    source: ClassVar[str] = "InfLLM: a window and blocks by representatives (arXiv 2402.04617)"
    layer_class = InfLLMLayer
    least_budget: ClassVar[int] = 16
    budget: int
    block: int = AUTO
    topk: int = AUTO
    n_init: int = AUTO
    n_local: int = AUTO
    repr_topk: int = 4
    selection: str = "layer"
    far_position: str = "window"

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, least in (("block", 1), ("topk", 0), ("n_init", 0), ("n_local", 1)):
            if getattr(self, field) is not AUTO:
                check_int(field, getattr(self, field), least)
        check_int("repr_topk", self.repr_topk, 1)
        b = self.budget
        if self.block is AUTO:
            powers = [2**i for i in range(b.bit_length())]
            self._resolve("block", min(powers, key=lambda p: abs(p - math.sqrt(b))))
        if self.topk is AUTO:
            self._resolve("topk", max(b // (2 * self.block) - 1, 0))
        if self.n_init is AUTO:
            self._resolve("n_init", min(max(b // 16, 4), 32))
        far = self.n_init + (self.topk + 1) * self.block
        if self.n_local is AUTO:
            self._resolve("n_local", b - far)
        self._resolve("repr_topk", min(self.repr_topk, self.block))
        least = far + max(self.n_local, 1)
        if least > b:
            allowed = f"at least n_init + n_local + (topk + 1) block = {least}"
            raise InvalidValue("budget", b, allowed)
        check_choice("selection", self.selection, ("layer", "kv_head"))
        check_choice("far_position", self.far_position, ("window", "absolute"))

    @property
    def exact_until(self) -> float:
        if self.far_position == "absolute":
            return self.n_init + self.n_local + (self.topk + 1) * self.block
        return self.n_local

    @property
    def turns_keys(self) -> bool:
        return True
