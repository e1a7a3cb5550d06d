"""InfLLM: a window, the first tokens, and the blocks whose representatives fit the query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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
    Layer,
    Ring,
    Step,
    Turn,
    check_choice,
    check_int,
    devices,
    fixed,
    gather,
    gpu,
    group,
    rotate,
    row_lists,
    top,
)


class InfLLMLayer(Choosing, Ring):
    """Attends to the window at true distances and to the far tokens chosen at one distance.

    The window is in a ring, roped; far tokens are in pages, turned to position 0. The first pages
    hold the first tokens, the others a block each. A token that leaves the window is turned and
    moved once, so that nothing is turned when it is read.
    """

    keeps_all = on_device = True
    kept, kept_positions = Layer.kept, Layer.kept_positions

    def __init__(self, geometry: Geometry, backend: InfLLM) -> None:
        super().__init__(geometry, backend, backend.n_local)
        self.n_init, self.block = backend.n_init, backend.block
        self.page, self.topk, self.repr_topk = self.block, backend.topk, backend.repr_topk
        self.kind = *self.kind, self.n_init, self.block, self.topk
        # Sets of blocks that a query chooses.
        self.sets = sets = geometry.Hkv if backend.selection == "kv_head" else 1
        # Far tokens stay at true distances too, so they are turned for representatives alone.
        self.absolute = backend.far_position == "absolute"
        # Pages of the first tokens, and slots of these that never hold one.
        self.init_pages = -(-self.n_init // self.block)
        self.spare = self.init_pages * self.block - self.n_init
        self.on_device = not self.absolute and self.limit >= self.spare
        D, wide = geometry.D, geometry.wide
        self.mass = self.slots("mass", dtype=wide, limit=self.limit)
        self.memories.append(self.mass)
        self.far_k = self.slots("far_k", (D,), multiple=self.block)
        self.far_v = self.slots("far_v", (D,), multiple=self.block)
        # The mass with which the tokens of the newest block left the window.
        self.left_mass = self.slots("left_mass", dtype=wide, limit=self.block)
        self.left_mass.fit(self.block)
        self.near = self.k, self.v, self.mass
        self.far = self.far_k, self.far_v, self.left_mass
        # KV heads of a set side by side: the sum over them is part of the product with the query.
        tail = (geometry.Hkv * D // sets,)
        self.means = self.slots("means", tail, heads=sets, dtype=wide, unit=self.block)

    # Steps whose lengths are on the device

    def dense(self, step: Step) -> bool:
        return step.longest <= self.limit

    def check(self, step: Step) -> None:
        reads = step.memo(("reads", self.kind), lambda: int(self.reads(step.seen).max()))
        self.check_budget(reads)

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        self.geometry.rope.table(counts.tokens, self.k.data)  # before `step` asks for it
        learns = gpu.Eviction("mass", memory=fixed(self.mass)[0])
        return self.store_of(self.k, self.v, counts.seen, self.limit, "stored", eviction=learns)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        assert self.store is not None
        near = fixed(*self.near)
        far = far_k, far_v, *_ = fixed(*self.far, self.means)
        turn = self.geometry.rope.table(counts.tokens, far_k)
        seen, live = counts.seen, counts.live
        scores = gpu.choices().estimate_blocks(
            q, k, v, scaling, near, far, turn, seen, live, self.n_init, self.repr_topk
        )
        if counts.dense:
            return gpu.attend(counts, self.store, q, k, v, scaling)
        options = {"page": self.block, "n_init": self.n_init, "window": self.limit}
        self.traces = table, read = gpu.choices().select(
            scores, seen, live, self.topk, heads=self.geometry.Hkv, **options
        )
        pages = gpu.Pages(far_k, far_v, table, read, self.block, self.n_init, turn)
        return gpu.attend(counts, self.store, q, k, v, scaling, pages)

    # Steps whose lengths are on the host

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.check(step)
        g, near = self.geometry, step.occupancy(self.limit)
        self.leave(step, [x.data for x in self.near], self.left_mass.data)
        self.write(k, v, step)
        query, self.chosen = group(q, g.Hkv, scaling), None
        far = self.attend_far(query, step) if step.longest > self.limit else None
        qkv = QKV(query, self.k.data, self.v.data, g.sink_logits)
        return g.engine.attend_with_mass(qkv, near, self.mass.data, far)

    def attend_far(self, query: Tensor, step: Step) -> AttentionOutput:
        """What the query gets of far tokens."""
        g, B = self.geometry, step.rows

        def known() -> tuple[Turn, Counts, Tensor, Tensor]:
            """Queries' turn to n_local - 1, blocks that compete, and pages and tokens to read.

            Pages are (B or 1, U): those that are always read, but all while all blocks are.
            """
            end, full = range(self.limit - 1, self.limit), self.full_blocks(step.seen)
            turn = g.rope.turn(step.past_tokens[:, None], end, query, step.longest)
            left = self.left(step.seen)[:, None]
            if full.max() <= self.topk:
                pages = np.arange(int(self.far_slot(left.max() - 1)) // self.block + 1)[None]
            else:
                firsts = np.broadcast_to(np.arange(self.init_pages), (B, self.init_pages))
                pages = np.concatenate((firsts, full[:, None] + self.init_pages), axis=1)
            # In the first pages tokens end before the spare slots, in blocks with the last one.
            ends = np.minimum(left, self.n_init), left + self.spare
            last = np.where(pages < self.init_pages, *ends)
            counts = (last - pages * self.block).clip(0, self.block)
            return turn, full, step.tensor(pages)[:, None], step.tensor(counts)[:, None]

        turn, full, pages, counts = step.memo(("far", self.kind), known)
        far = g.engine.rotate(query.view(B, g.Hq, 1, g.D), turn).view(query.shape)
        if full.max() > self.topk:
            pages, counts = g.engine.best_pages(
                far.to(g.wide).sum(2).view(B, self.sets, 1, -1), self.means.data,
                step.holding(full, ("blocks", self.kind)), self.topk, (pages[:, 0], counts[:, 0]),
                self.block, first=self.init_pages, narrow=True,
            )  # fmt: skip
            self.chosen = Choice(pages, counts > 0, counts)
        pages, counts = (x.expand(B, g.Hkv, -1) for x in (pages, counts))
        qkv = QKV(query if self.absolute else far, self.far_k.data, self.far_v.data)
        return g.engine.attend_pages(qkv, pages, counts, self.block, lse=True)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        past, g = step.past, self.geometry
        new = k, v, self.mass.data.new_zeros(k.shape[:3])
        keys, values, before = map(step.join, self.in_order(past, slice(None)), [past] * 3, new)
        last, square = step.last_visible(past, "all"), not past.any() and not step.padded
        out, grouped = g.engine.dense_with_mass(
            q, keys, values, scaling, last, square, step.real(), self.limit, g.sink_logits
        )
        held = keys, values, grouped.sum(2) + before
        self.leave(step, held, held[2][:, :, self.n_init :])
        for slots, tokens in zip(self.near, held, strict=True):
            self.keep_newest(slots, tokens, past, step)
        self.chosen = None
        return out

    # Which part a token is in

    def left(self, seen: Counts) -> Counts:
        """Tokens that have left the window, (B,)."""
        return np.maximum(seen - self.limit, 0)

    def blocked(self, seen: Counts) -> Counts:
        """Tokens in blocks, the newest one included, (B,)."""
        return np.maximum(self.left(seen) - self.n_init, 0)

    def full_blocks(self, seen: Counts) -> Counts:
        """Blocks that compete: all but the newest, (B,)."""
        return np.maximum(-(-self.blocked(seen) // self.block) - 1, 0)

    def far_slot(self, position: Counts) -> Counts:
        """Slot among the pages of a token that left the window."""
        return np.where(position < self.n_init, position, position + self.spare)

    def leave(self, step: Step, held: Sequence[Tensor], masses: Tensor) -> None:
        """Move the tokens that leave the windows to the far pages; represent blocks they complete.

        Args:
            held: keys, values and mass, (B, Hkv, n, ...), token of position p in slot p modulo n.
            masses: (B, Hkv, m), of token i behind the first ones in slot i modulo m.
        """
        gone = step.longest - self.limit
        if gone <= 0:
            return
        for slots in (self.far_k, self.far_v):
            slots.fit(gone + (self.spare if gone > self.n_init else 0))
        self.means.fit(max(gone - self.n_init, 1))
        n, g, block = held[0].shape[2], self.geometry, self.block

        def leaving() -> tuple[Tensor, Tensor, Tensor, Tensor, Turn]:
            now = self.left(step.seen)
            rows, position = _ranges(self.left(step.past), now)
            newest = position >= now[rows] - block
            late, place = rows[newest], position[newest]
            return (
                self.flat(rows, position % n, n),
                self.flat(rows, self.far_slot(position), self.far_k.capacity),
                self.flat(late, place % n, n),
                # First tokens write here too; a block overwrites all of it before it is read.
                self.flat(late, (place - self.n_init) % block, block),
                g.rope.turn(step.tensor(position)[:, None], range(1), held[0], step.longest),
            )

        def completed() -> list[Tensor]:
            """Rows and numbers of blocks, (N,) each."""
            old, new = (self.blocked(seen) // block for seen in (step.past, step.seen))
            return [step.tensor(x) for x in _ranges(old, new)]

        start, end, late, rest, turn = step.memo(("leaving", self.kind), leaving)
        k, v = (x.flatten(0, 2).index_select(0, start).view(-1, g.Hkv, 1, g.D) for x in held[:2])
        k = k if self.absolute else g.engine.rotate(k, turn)
        g.engine.put(((self.far_k, k), (self.far_v, v)), end)
        self.left_mass.flat.index_copy_(0, rest, held[2].flatten().index_select(0, late))
        rows, number = step.memo(("completed", self.kind), completed)
        if not len(rows):
            return
        tokens = number[:, None] * block + torch.arange(block, device=rows.device)  # (N, block)
        pages = self.far_k.data.view(*self.far_k.data.shape[:2], -1, block, g.D)
        keys = pages[rows, :, number + self.init_pages]
        if self.absolute:
            at = tokens + self.n_init
            keys = rotate(keys, g.rope.turn(at, range(1), keys, step.longest))
        mass = masses.transpose(1, 2)[rows[:, None], tokens % masses.shape[2]].transpose(1, 2)
        # The mean of keys with most mass, among equals the first ones. In float32, so that equals
        # up to rounding are ties: text that repeats itself has equal keys in the first layer, and
        # which one wins must not depend on rounding, which changes with the number of rows.
        heaviest = top(mass.to(torch.float32), self.repr_topk)[1]
        means = gather(keys, heaviest).to(g.wide).mean(2)
        self.means.data[rows, :, number] = means.view(len(rows), self.sets, -1)

    def flat(self, rows: Counts, slot: Counts, capacity: int) -> Tensor:
        """Index into `Slots.flat` of slots of rows, (N,) each, the same in all heads, (N * H,)."""
        H = self.geometry.Hkv
        index = (rows[:, None] * H + np.arange(H)) * capacity + slot[:, None]
        return devices.put(index.reshape(-1), self.geometry.device)

    def in_order(self, seen: Counts, rows: Tensor | slice) -> list[Tensor]:
        """Keys, roped as the model did, values and mass of rows by position, (R, Hkv, n, ...).

        What left the window is turned back from position 0: equal to what the model gave but for
        the rounding of two turns, each to the model's dtype. Mass is that of the window and of the
        newest block; before that it is anything.
        """
        device, position = self.geometry.device, np.arange(seen.max(initial=0))
        gone, result = position < self.left(seen)[:, None], []
        for parts in zip(self.far, self.near, strict=True):
            C, both = parts[0].capacity, torch.cat([x.data[rows] for x in parts], dim=2)
            slot = np.where(gone, self.far_slot(position) % max(C, 1), C + position % self.limit)
            slot[position >= seen[:, None]] = 0
            result.append(gather(both, devices.put(slot, device)[:, None]))
        if gone.any() and not self.absolute:
            turn = self.geometry.rope.turn(range(1), devices.put(position[None], device), result[0])
            left = devices.put(gone, device)[:, None, :, None]
            result[0] = rotate(result[0], turn).where(left, result[0])
        return result

    def tokens(self, rows: Tensor, seen: Counts) -> tuple[Tensor, Tensor]:
        keys, values, _ = self.in_order(seen, rows)
        return keys, values

    # Accounting

    def reads(self, seen: Counts) -> Counts:
        skipped: Counts = np.maximum(self.full_blocks(seen) - self.topk, 0) * self.block
        return seen - skipped

    def overhead(self, seen: Counts) -> Counts:
        full = self.full_blocks(seen)
        return np.where(full > self.topk, full, 0) * self.geometry.Hkv

    def row_bytes(self, seen: Counts) -> Counts:
        g, blocked = self.geometry, self.blocked(seen)
        masses = np.minimum(seen, self.limit) + np.minimum(blocked, self.block)
        state = g.Hkv * (masses + blocked // self.block * g.D) * g.wide.itemsize
        return super().row_bytes(seen) + state

    def read_positions(self, row: int, seen: int) -> Tensor:
        everything = self.kept_positions(row, seen)
        if self.chosen is None:
            return everything
        left = max(seen - self.limit, 0)
        pages = torch.as_tensor(self.far_slot(np.arange(left)) // self.block)
        read = self.chosen.mask(self.far_k.capacity // self.block)[row][:, pages]
        read = functional.pad(read, (0, seen - left), value=True)
        return row_lists(everything[: len(read)], read).expand(self.geometry.Hkv, -1)


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
        powers = [2**i for i in range(self.budget.bit_length())]
        self._settle("block", 1, min(powers, key=lambda p: abs(p - math.sqrt(self.budget))))
        self._settle("topk", 0, max(self.budget // (2 * self.block) - 1, 0))
        self._settle("n_init", 0, min(max(self.budget // 16, 4), 32))
        far = self.n_init + (self.topk + 1) * self.block
        self._settle("n_local", 1, self.budget - far)
        self._resolve("repr_topk", min(check_int("repr_topk", self.repr_topk, 1), self.block))
        least = far + max(self.n_local, 1)
        if least > self.budget:
            allowed = f"at least n_init + n_local + (topk + 1) block = {least}"
            raise InvalidValue("budget", self.budget, allowed)
        check_choice("selection", self.selection, ("layer", "kv_head"))
        check_choice("far_position", self.far_position, ("window", "absolute"))

    def _settle(self, field: str, least: int, default: int) -> None:
        given = getattr(self, field) is not AUTO
        self._resolve(field, check_int(field, getattr(self, field), least) if given else default)

    @property
    def exact_until(self) -> float:
        p = self._smallest
        far = p.n_init + (p.topk + 1) * p.block
        return p.n_local + far * (self.far_position == "absolute")

    @property
    def turns_keys(self) -> bool:
        return True
