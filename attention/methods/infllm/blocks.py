"""Base class of methods with a window, first tokens, and blocks known by a representative."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attention.contract import Counts, Geometry, Layer, Method, Step, Turn, mean_of_heaviest, rotate


class Parts(NamedTuple):
    """How a budget is split, in tokens (topk and repr_topk: in blocks and keys)."""

    n_init: int
    n_local: int
    block: int
    topk: int
    repr_topk: int


class Blocks(Layer):
    """The window in a ring, roped; far tokens in pages, turned to position 0.

    Pages: the first ones hold the first tokens, the others a block each. A token that leaves the
    window is turned and moved once, so that nothing is turned when it is read.

    Args:
        sets: how many sets of blocks a query chooses, 1 for the layer or one per KV head.
    """

    keeps_all = True

    def __init__(self, geometry: Geometry, backend: Method, parts: Parts, sets: int) -> None:
        super().__init__(geometry, backend)
        self.parts, self.sets = parts, sets
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
            first = (rows[:, None] * Hkv + np.arange(Hkv)).reshape(-1)

            def flat(slot: Counts, capacity: int) -> Tensor:
                return step.tensor(first * capacity + slot.repeat(Hkv))

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
        number = blocked[rows] // self.block - 1

        def flat(H: int, capacity: int, slot: Counts) -> Tensor:
            first = (rows[:, None] * H + np.arange(H)).reshape(-1) * capacity
            return step.tensor(first + slot.repeat(H))

        Hkv = self.geometry.Hkv
        return (
            flat(Hkv, self.far_k.capacity // self.block, number + self.init_pages),
            flat(Hkv, 1, np.zeros_like(number)),
            flat(self.sets, self.means.capacity, number),
        )

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

    def row_bytes(self, seen: Counts) -> Counts:
        g = self.geometry
        complete = self.blocked(seen) // self.block
        rest = np.minimum(self.blocked(seen), self.block)
        masses = np.minimum(seen, self.n_local) + rest
        state = g.Hkv * (masses + complete * g.D) * g.wide.itemsize
        return super().row_bytes(seen) + state
