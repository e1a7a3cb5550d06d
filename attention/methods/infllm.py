"""InfLLM: a window, the first tokens, and the blocks whose representatives fit the query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    QKV,
    AttentionOutput,
    Backend,
    Counts,
    Geometry,
    InvalidValue,
    Layer,
    Step,
    Turn,
    check_choice,
    check_int,
    fixed,
    gpu,
    group,
    mean_of_heaviest,
    rotate,
    row_lists,
    take_pages,
)


class Parts(NamedTuple):
    """How a budget is split, in tokens (topk and repr_topk: in blocks and keys)."""

    n_init: int
    n_local: int
    block: int
    topk: int
    repr_topk: int


class InfLLMLayer(Layer):
    """Attends to the window at true distances and to the far tokens chosen at one distance.

    The window is in a ring, roped; far tokens are in pages, turned to position 0. The first pages
    hold the first tokens, the others a block each. A token that leaves the window is turned and
    moved once, so that nothing is turned when it is read.
    """

    keeps_all = True

    def __init__(self, geometry: Geometry, backend: InfLLM) -> None:
        super().__init__(geometry, backend)
        self.parts = parts = backend.parts
        # Sets of blocks that a query chooses.
        self.sets = sets = geometry.Hkv if backend.selection == "kv_head" else 1
        # Far tokens are at true distances too; choosing is as ever.
        self.absolute = backend.far_position == "absolute"
        self.n_init, self.n_local, self.block = parts.n_init, parts.n_local, parts.block
        self.init_pages = -(-parts.n_init // parts.block)
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
        # The position of a query for keys at position 0.
        self.far_end = range(self.n_local - 1, self.n_local)
        self._chosen: tuple[Tensor, Tensor] | None = None

    @property
    def chosen(self) -> tuple[Tensor, Tensor] | None:
        """Pages read by the last decode query, tokens read of each, (B, sets, U); None for all."""
        if self._chosen is None and self.traces:
            pages, read = (x[: len(self.near_k.data), : self.sets] for x in self.traces)
            first = torch.arange(pages.shape[2], device=read.device) * self.block
            counts = (read[..., None] - first).clamp_(0, self.block)
            own = (self.n_init - first[: self.init_pages]).clamp_(max=self.block)
            counts[..., : self.init_pages] = counts[..., : self.init_pages].minimum(own)
            self._chosen = pages.long().masked_fill(counts == 0, 0), counts
        return self._chosen

    @chosen.setter
    def chosen(self, choice: tuple[Tensor, Tensor] | None) -> None:
        self._chosen, self.traces = choice, ()

    # Steps whose lengths are on the device

    @property
    def on_device(self) -> bool:  # type: ignore[override]
        return not self.absolute and self.n_local >= -self.n_init % self.block

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
        near, parts = fixed(self.near_k, self.near_v, self.mass), self.parts
        far = far_k, far_v, *_ = fixed(self.far_k, self.far_v, self.left_mass, self.means)
        turn = self.geometry.rope.table(counts.tokens, far_k)
        seen, live = counts.seen, counts.live
        scores = gpu.choices().estimate_blocks(
            q, k, v, scaling, near, far, turn, seen, live, parts.n_init, parts.repr_topk
        )
        if counts.dense:
            return gpu.attend(counts, self.store, q, k, v, scaling)
        options = {"page": parts.block, "n_init": parts.n_init, "window": parts.n_local}
        self.traces = table, read = gpu.choices().select(
            scores, seen, live, parts.topk, heads=self.geometry.Hkv, **options
        )
        pages = gpu.Pages(far_k, far_v, table, read, parts.block, parts.n_init, turn)
        return gpu.attend(counts, self.store, q, k, v, scaling, pages)

    def settle(self, step: Step) -> tuple[()]:  # noqa: ARG002
        self._chosen = None
        return ()

    # Decode

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        Hkv = self.geometry.Hkv
        self.make_room(step)
        self.push_out(step)
        here = step.memo("near slot", lambda: step.past % self.n_local)
        at = step.flat(here, Hkv, self.near_k.capacity, "near")
        g, near = self.geometry, step.occupancy(self.n_local)
        g.engine.put(((self.near_k, k), (self.near_v, v), (self.mass, None)), at)
        self.represent(step)

        query, far, read = group(q, Hkv, scaling), None, 0
        self.chosen = None
        if step.longest > self.n_local:
            far, read = self.attend_far(query, step)
        self.spend(near.most + read)
        qkv = QKV(query, self.near_k.data, self.near_v.data, g.sink_logits)
        return g.engine.attend_with_mass(qkv, near, self.mass.data, far)

    def attend_far(self, query: Tensor, step: Step) -> tuple[AttentionOutput, int]:
        """What the query gets of far tokens, and how many it may read."""
        engine, B, Hkv = self.geometry.engine, step.rows, self.geometry.Hkv
        far = self.far_query(query, step)
        full = step.memo("full blocks", lambda: self.full_blocks(step.seen))
        if full.max() <= self.parts.topk:
            pages, counts = step.memo("all pages", lambda: self.all_pages(step))
        else:
            pages, counts = self.choose(far, full, step)
            self.chosen = pages, counts
        keys, values, slots = self.far_k.data, self.far_v.data, pages.shape[2] * self.block
        every, each = (x.expand(B, Hkv, -1) for x in (pages, counts))
        if self.absolute:
            keys, values = (x.view(B, Hkv, slots, -1) for x in self.placed(every))
            every = torch.arange(pages.shape[2], device=step.device).expand(B, Hkv, -1)
            far = query
        qkv = QKV(far, keys, values)
        # Slots of the first pages that never hold a token.
        spare = max(0, min(slots, self.init_pages * self.block) - self.n_init)
        return engine.attend_pages(qkv, every, each, self.block, lse=True), slots - spare

    def far_query(self, query: Tensor, step: Step) -> Tensor:
        """The query turned from its position to n_local - 1, for keys at position 0."""

        def turn() -> Turn:
            start = step.past_tokens[:, None]
            return self.geometry.rope.turn_each(start, step.longest, self.far_end, query)

        per_row = query.view(step.rows, self.geometry.Hq, 1, self.geometry.D)
        turned = self.geometry.engine.rotate(per_row, step.memo("far query", turn))
        return turned.view(query.shape)

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
            self.parts.topk,
            step.memo("always", always),
            self.block,
            first=self.init_pages,
            narrow=True,
        )

    # Prefill

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        past = step.past
        keys = step.join(self.in_order(self.far_k.data, self.near_k.data, past, True), past, k)
        values = step.join(self.in_order(self.far_v.data, self.near_v.data, past, False), past, v)
        last, square = step.last_visible(past, "all"), not past.any() and not step.padded
        sinks, engine = self.geometry.sink_logits, self.geometry.engine
        out, grouped = engine.dense_with_mass(
            q, keys, values, scaling, last, square, step.real(), self.n_local, sinks
        )
        mass = grouped.sum(2)
        self.make_room(step)
        for r, (had, seen) in enumerate(zip(past.tolist(), step.seen.tolist(), strict=True)):
            was = max(had - self.n_local, 0)
            self.move(r, had, seen, keys[r, :, was:], values[r, :, was:], step)
            self.collect(r, had, seen, mass[r, :, was:], step)
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
        start = self.init_pages * self.block - self.n_init
        return np.where(position < self.n_init, position, position + start)

    def far_position(self, slot: Tensor) -> Tensor:
        """Position of the token of a slot; a slot that holds none gets one beyond all tokens."""
        start = self.init_pages * self.block
        nothing = torch.iinfo(torch.int64).max
        first = slot.masked_fill(slot >= self.n_init, nothing)
        return torch.where(slot < start, first, slot - start + self.n_init)

    # Leaving the window, token by token

    def make_room(self, step: Step) -> None:
        near = min(step.longest, self.n_local)
        if self.near_k.capacity < near:
            for slots in (self.near_k, self.near_v, self.mass):
                slots.fit(near)
        gone = step.longest - self.n_local
        if gone > 0:
            self.left_mass.fit(self.block)
            far = step.memo("far slots", lambda: int(self.far_slot(np.array(gone - 1))) + 1)
            if self.far_k.capacity < far:
                for slots in (self.far_k, self.far_v):
                    slots.fit(far)
            self.means.fit(max(gone - self.n_init, 1))

    def push_out(self, step: Step) -> None:
        """Move the token that leaves each row's window to the far pages."""
        if step.longest <= self.n_local:
            return
        Hkv = self.geometry.Hkv

        def leaving() -> tuple[Tensor, Tensor, Tensor, Turn]:
            rows = np.flatnonzero(step.past >= self.n_local)
            gone = step.past[rows] - self.n_local

            def flat(slot: Counts, capacity: int) -> Tensor:
                return step.tensor(_flat(rows, Hkv, slot, capacity))

            position = step.tensor(gone)[:, None]
            return (
                flat(step.past[rows] % self.n_local, self.near_k.capacity),
                flat(self.far_slot(gone), self.far_k.capacity),
                # First tokens write here too; a block overwrites all of it before it is read.
                flat((gone - self.n_init) % self.block, self.left_mass.capacity),
                self.geometry.rope.turn_each(position, step.longest, range(1), self.near_k.data),
            )

        start, end, rest, turn = step.memo("leaving", leaving)
        engine = self.geometry.engine
        engine.carry(self.near_k, start, self.far_k, end, turn)
        engine.carry(self.near_v, start, self.far_v, end)
        engine.carry(self.mass, start, self.left_mass, rest)

    def represent(self, step: Step) -> None:
        """Compute the representatives of blocks whose last token just left the window."""
        blocks = step.memo("complete", lambda: self.completed(step))
        if blocks is None:
            return
        pages, masses, at = blocks
        means = self.geometry.engine.mean_of_heaviest(
            self.far_k, self.left_mass, pages, masses, self.block, self.parts.repr_topk
        )
        self.geometry.engine.put(((self.means, means.view(at.shape[0], 1, 1, -1)),), at)

    def completed(self, step: Step) -> tuple[Tensor, Tensor, Tensor] | None:
        """Blocks whose last token just left the window, where they lie in the flat state.

        Returns:
            Their pages of keys and their masses, (N * Hkv,) each, and their means, (N * sets,);
            None where there are none.
        """
        blocked = self.blocked(step.seen)
        rows = np.flatnonzero((blocked > self.blocked(step.past)) & (blocked % self.block == 0))
        if not len(rows):
            return None
        number, Hkv = blocked[rows] // self.block - 1, self.geometry.Hkv
        pages = _flat(rows, Hkv, number + self.init_pages, self.far_k.capacity // self.block)
        masses = _flat(rows, Hkv, np.zeros_like(number), 1)
        means = _flat(rows, self.sets, number, self.means.capacity)
        return step.tensor(pages), step.tensor(masses), step.tensor(means)

    # Leaving the window, a prompt at once

    def in_order(self, far: Tensor, near: Tensor, seen: Counts, turn: bool) -> Tensor | None:
        """Everything stored in order of position, keys roped as the model did, (B, Hkv, n, D).

        What left the window is turned back from position 0: equal to what the model gave but for
        the rounding of two turns, each to the model's dtype.
        """
        most, device = int(seen.max(initial=0)), far.device
        if not most:
            return None
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
        k, v = self.in_order(far_k, near_k, seen, True), self.in_order(far_v, near_v, seen, False)
        return (near_k[:, :, :0], near_v[:, :, :0]) if k is None or v is None else (k, v)

    def move(self, r: int, past: int, seen: int, keys: Tensor, values: Tensor, step: Step) -> None:
        """Sort one row's tokens `past` to `seen` into the window, and those it loses to the pages.

        Args:
            keys, values: (Hkv, N, D), from the oldest token of the window before, in order.
        """
        was, now = (max(n - self.n_local, 0) for n in (past, seen))
        window = step.tensor(np.arange(now, seen) % self.n_local)
        self.near_k.data[r, :, window] = keys[:, now - was : seen - was]
        self.near_v.data[r, :, window] = values[:, now - was : seen - was]
        if was == now:
            return
        position = torch.arange(was, now, device=step.device)[None]
        turn = self.geometry.rope.turn(position, range(1), keys)
        slot = step.tensor(self.far_slot(np.arange(was, now)))
        self.far_k.data[r, :, slot] = rotate(keys[None, :, : now - was], turn)[0]
        self.far_v.data[r, :, slot] = values[:, : now - was]

    def collect(self, r: int, past: int, seen: int, mass: Tensor, step: Step) -> None:
        """Add the mass one row's tokens got by queries `past` to `seen`, and complete blocks by it.

        Args:
            mass: (Hkv, N), from the oldest token of the window before, in order.
        """
        was, now = (max(n - self.n_local, 0) for n in (past, seen))
        ring = step.tensor(np.arange(was, past) % self.n_local)
        mass = mass[:, : seen - was].clone()
        mass[:, : past - was] += self.mass.data[r][:, ring]
        window = step.tensor(np.arange(now, seen) % self.n_local)
        self.mass.data[r, :, window] = mass[:, now - was :]
        if was < now:
            self.complete(r, was, now, mass)

    def complete(self, r: int, was: int, now: int, mass: Tensor) -> None:
        """Representatives of the blocks filled by tokens was..now, and the mass of the newest."""
        old, new = max(was - self.n_init, 0), max(now - self.n_init, 0)
        first, last = old // self.block, new // self.block
        begun = self.left_mass.data[r, :, : old - first * self.block]
        block_mass = torch.cat((begun, mass[:, old + self.n_init - was : now - was]), dim=-1)
        if last > first:
            start, end = ((self.init_pages + x) * self.block for x in (first, last))
            keys = self.far_k.data[r, :, start:end].reshape(-1, self.block, self.geometry.D)
            filled = block_mass[:, : (last - first) * self.block].reshape(-1, self.block)
            means = mean_of_heaviest(keys, filled, self.parts.repr_topk)
            by_set = (
                means.view(self.geometry.Hkv, last - first, -1)
                .transpose(0, 1)
                .reshape(last - first, self.sets, -1)
            )
            self.means.data[r, :, first:last] = by_set.transpose(0, 1)
        rest = new - last * self.block
        if rest:
            self.left_mass.data[r, :, :rest] = block_mass[:, -rest:]

    # Accounting

    def reads(self, seen: Counts) -> Counts:
        full = self.full_blocks(seen)
        skipped: Counts = np.maximum(full - self.parts.topk, 0) * self.block
        return seen - skipped

    def overhead(self, seen: Counts) -> Counts:
        full = self.full_blocks(seen)
        return np.where(full > self.parts.topk, full, 0) * self.geometry.Hkv

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
        pages, counts = (x[row] for x in self.chosen)
        slot, left = self.page_slots(pages), max(seen - self.n_local, 0)
        offset = torch.arange(self.block, device=slot.device)
        far, live = self.far_position(slot), (offset < counts[..., None]).flatten(-2)
        window = everything[: self.sets, left:]
        positions = torch.cat((far, window), dim=-1)
        live = torch.cat((live, torch.ones_like(window, dtype=torch.bool)), dim=-1)
        return row_lists(positions, live).expand(self.geometry.Hkv, -1)

    def select(self, index: Tensor) -> None:
        chosen = self.chosen  # of the rows as they are
        super().select(index)
        if chosen is not None:
            pages, counts = chosen
            self.chosen = pages.index_select(0, index), counts.index_select(0, index)


def _flat(rows: Counts, H: int, slot: Counts, capacity: int) -> Counts:
    """Index into `Slots.flat` of a slot of each of these rows, the same in all H heads."""
    return (rows[:, None] * H + np.arange(H)).reshape(-1) * capacity + slot.repeat(H)


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
    block: int | None = None
    topk: int | None = None
    n_init: int | None = None
    n_local: int | None = None
    repr_topk: int = 4
    selection: str = "layer"
    far_position: str = "window"

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, least in (("block", 1), ("topk", 0), ("n_init", 0), ("n_local", 1)):
            value = getattr(self, field)
            if value is not None:
                check_int(field, value, least)
        check_int("repr_topk", self.repr_topk, 1)
        parts = self.parts
        far = parts.n_init + (parts.topk + 1) * parts.block
        if parts.n_local < 1 or far + parts.n_local > self.budget:
            least = far + max(parts.n_local, 1)
            allowed = f"at least n_init + n_local + (topk + 1) block = {least}"
            raise InvalidValue("budget", self.budget, allowed)
        check_choice("selection", self.selection, ("layer", "kv_head"))
        check_choice("far_position", self.far_position, ("window", "absolute"))

    @property
    def parts(self) -> Parts:
        """The split in force."""
        b = self.budget
        powers = [2**i for i in range(b.bit_length())]
        block = self.block or min(powers, key=lambda p: abs(p - math.sqrt(b)))
        topk = b // (2 * block) - 1 if self.topk is None else self.topk
        n_init = min(max(b // 16, 4), 32) if self.n_init is None else self.n_init
        rest = b - n_init - (topk + 1) * block
        n_local = rest if self.n_local is None else self.n_local
        return Parts(n_init, n_local, block, max(topk, 0), min(self.repr_topk, block))

    @property
    def exact_until(self) -> float:
        parts = self.parts
        if self.far_position == "absolute":
            return parts.n_init + parts.n_local + (parts.topk + 1) * parts.block
        return parts.n_local

    @property
    def turns_keys(self) -> bool:
        return True

    def params(self) -> dict[str, Any]:
        return super().params() | self.parts._asdict()
