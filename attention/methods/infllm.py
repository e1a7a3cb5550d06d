"""InfLLM: a window, the first tokens, and the blocks whose representatives fit the query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.backend import Backend, whole
from attention.blocks import Blocks, Parts, comparable
from attention.errors import InvalidValue
from attention.kernels import dense_with_mass, group, hide, logits, take_pages, top
from attention.layer import Geometry, Layer, row_lists
from attention.ropes import Turn, rotate
from attention.step import Counts, Step


@dataclass(frozen=True, kw_only=True)
class InfLLM(Backend):
    """Reads the last n_local tokens, the first n_init, the newest far block and topk others.

    InfLLM, arXiv 2402.04617; thunlp/InfLLM. A token that leaves the window joins the first tokens,
    then blocks; the newest block, of 1 to `block` tokens, is always read. A full block is
    represented, per KV head, by the mean of its `repr_topk` keys that received most probability
    while in the window, summed over the group. Far keys are all seen at distance n_local - 1. One
    set of blocks serves the layer, by the sum over heads of query times representative. Unlike the
    authors' sparse prefill ours is dense; it still collects that probability from it.

    Args:
        budget: tokens a decode query may read, current token included; at least 16.
        block: tokens per block; by default the power of two nearest sqrt(budget).
        topk: blocks chosen; budget // (2 block) - 1 by default.
        n_init: first tokens always read; budget // 16 within 4..32 by default.
        n_local: window, current token included; by default what the others leave of the budget.
        repr_topk: keys that make a representative, at most `block`; 4 by default.

    Raises:
        InvalidValue: a parameter is out of range, or the parts exceed the budget.
    """

    name: ClassVar[str] = "infllm"
    source: ClassVar[str] = "InfLLM: a window and blocks by representatives (arXiv 2402.04617)"
    budget: int
    block: int | None = None
    topk: int | None = None
    n_init: int | None = None
    n_local: int | None = None
    repr_topk: int = 4

    def __post_init__(self) -> None:
        whole("budget", self.budget, 16)
        for field, least in (("block", 1), ("topk", 0), ("n_init", 0), ("n_local", 1)):
            value = getattr(self, field)
            if value is not None:
                whole(field, value, least)
        whole("repr_topk", self.repr_topk, 1)
        parts = self.parts
        far = parts.n_init + (parts.topk + 1) * parts.block
        if parts.n_local < 1 or far + parts.n_local > self.budget:
            raise InvalidValue(
                "budget",
                self.budget,
                f"at least n_init + n_local + (topk + 1) block = {far + max(parts.n_local, 1)}",
            )

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
        return self.parts.n_local

    @property
    def turns_keys(self) -> bool:
        return True

    def params(self) -> dict[str, Any]:
        return super().params() | self.parts._asdict()

    def layer(self, geometry: Geometry) -> Layer:
        return InfLLMLayer(geometry, self.budget, self.parts)


class InfLLMLayer(Blocks):
    """Attends to the window at true distances and to the far tokens chosen at one distance."""

    def __init__(self, geometry: Geometry, budget: int, parts: Parts) -> None:
        super().__init__(geometry, budget, parts)
        # Pages read by the last decode query, -1 where an entry fills up; None for all.
        self.chosen: Tensor | None = None

    # Decode

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        Hkv = self.geometry.Hkv
        self.make_room(step)
        self.push_out(step)
        here = step.past % self.n_local
        at = step.flat(here, Hkv, self.near_k.capacity, "near")
        self.near_k.flat.index_copy_(0, at, k.flatten(0, 2))
        self.near_v.flat.index_copy_(0, at, v.flatten(0, 2))
        self.mass.flat.index_fill_(0, at, 0.0)
        self.represent(step)

        near = min(step.longest, self.n_local)
        grouped = group(q, Hkv, scaling)
        keys, values = (x.data.flatten(0, 1)[:, :near] for x in (self.near_k, self.near_v))
        scores = hide(logits(grouped, keys), step.hidden(self.n_local))
        self.chosen = None
        if step.longest <= self.n_local:
            self.spend(near)
            probs = torch.softmax(scores, dim=-1, dtype=self.geometry.wide)
            out = torch.bmm(probs.to(values.dtype), values)
        else:
            far = self.far_query(grouped, step)
            far_keys, far_values, hidden, read = self.far_slots(far, step)
            self.spend(near + read)
            far_scores = hide(logits(far, far_keys), hidden)
            both = torch.cat((scores, far_scores), dim=-1)
            probs = torch.softmax(both, dim=-1, dtype=self.geometry.wide)
            weights = probs.to(values.dtype)
            out = torch.bmm(weights[..., :near], values)
            out += torch.bmm(weights[..., near:], far_values)
        seen_mass = probs[..., :near].reshape(step.rows, Hkv, -1, near).sum(2)
        self.mass.data[:, :, :near] += seen_mass
        return out

    def far_query(self, grouped: Tensor, step: Step) -> Tensor:
        """The query turned from its position to n_local - 1, for keys at position 0."""

        def turn() -> Turn:
            end = range(self.n_local - 1, self.n_local)
            return self.geometry.rope.turn(step.past_tokens[:, None], end, grouped)

        per_row = grouped.view(step.rows, self.geometry.Hq, 1, self.geometry.D)
        return rotate(per_row, step.once("far query", turn)).view(grouped.shape)

    def far_slots(self, far: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor, int]:
        """Far keys and values to read (B * Hkv, S, D), which slots to hide, and how many count."""
        full = self.full_blocks(step.seen)
        left = step.once("left", lambda: step.tensor(self.left(step.seen))[:, None])
        if int(full.max()) <= self.parts.topk:
            # All blocks are read: no choice, and nothing to copy.
            S = int(self.far_slot(self.left(step.seen).max() - 1)) + 1
            hidden = step.once(
                "far hidden",
                lambda: self.hidden_slots(torch.arange(S, device=step.device)[None], left),
            )
            keys, values = (x.data.flatten(0, 1)[:, :S] for x in (self.far_k, self.far_v))
            return keys, values, hidden, S - self.spare(S)
        pages, live = self.choose(far, full, step)
        slot = pages[..., None] * self.block + torch.arange(self.block, device=step.device)
        hidden = self.hidden_slots(slot.flatten(1), left)
        hidden |= ~live.repeat_interleave(self.block, dim=1)[:, None, None]
        self.chosen = torch.where(live, pages, -1)
        every = pages[:, None].expand(-1, self.geometry.Hkv, -1)
        keys, values = (take_pages(x.data, every, self.block) for x in (self.far_k, self.far_v))
        S = slot.shape[1] * self.block
        return keys, values, hidden, S - self.spare(S)

    def spare(self, S: int) -> int:
        """Slots of the first pages, among S, that never hold a token."""
        return max(0, min(S, self.init_pages * self.block) - self.n_init)

    def hidden_slots(self, slot: Tensor, left: Tensor) -> Tensor:
        """Slots (B or 1, S) holding no token that has left the window, (B, 1, 1, S)."""
        return (self.far_position(slot) >= left)[:, None, None]

    def choose(self, far: Tensor, full: Counts, step: Step) -> tuple[Tensor, Tensor]:
        """Pages of the layer, (B, U), and which of them are to be read."""
        g, B = self.geometry, step.rows
        summed = far.view(B, g.Hkv, g.G, g.D).sum(2).view(B, 1, -1).to(g.wide)
        blocks = int(full.max())
        fit = logits(summed, self.means.data[:, 0, :blocks])[:, 0]
        competing = step.once(
            "competing",
            lambda: torch.arange(blocks, device=step.device) < step.tensor(full)[:, None],
        )
        fit = comparable(fit).masked_fill(~competing, float("-inf"))
        values, index = top(fit, self.parts.topk)
        first = step.once(
            "first pages",
            lambda: torch.arange(self.init_pages, device=step.device).expand(B, -1),
        )
        newest = step.once("newest", lambda: step.tensor(full)[:, None])
        some = step.once("some", lambda: step.tensor(self.blocked(step.seen) > 0)[:, None])
        live = torch.cat((torch.ones_like(first, dtype=torch.bool), some, values.isfinite()), -1)
        blocks_read = torch.cat((newest, index), dim=-1) + self.init_pages
        return torch.cat((first, blocks_read), dim=-1), live

    # Prefill

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        keys = step.join(self.held(self.far_k.data, self.near_k.data, step, True), step.past, k)
        values = step.join(self.held(self.far_v.data, self.near_v.data, step, False), step.past, v)
        last = step.last_visible(step.past, "all")
        out, grouped = dense_with_mass(
            q, keys, values, scaling, last, step.real(), band=self.n_local
        )
        mass = grouped.sum(2)
        before = self.mass.data
        self.make_room(step)
        for r in range(step.rows):
            self.store(r, keys[r], values[r], mass[r], before[r], step)
        self.chosen = None
        return out

    # Accounting

    def reads(self, seen: Counts) -> Counts:
        full = self.full_blocks(seen)
        skipped: Counts = np.maximum(full - self.parts.topk, 0) * self.block
        return seen - skipped

    def cost(self, seen: Counts) -> Counts:
        full = self.full_blocks(seen)
        compared = np.where(full > self.parts.topk, full, 0)
        total: Counts = (self.reads(seen) + compared) * self.geometry.Hkv
        return total

    def read_positions(self, row: int, seen: int) -> Tensor:
        everything = self.kept_positions(row, seen)
        if self.chosen is None:
            return everything
        pages = self.chosen[row][self.chosen[row] >= 0]
        slot = pages[:, None] * self.block + torch.arange(self.block, device=pages.device)
        far = self.far_position(slot).reshape(1, -1)
        left = int(self.left(np.array([seen]))[0])
        far = far[far < left][None]
        positions = torch.cat((far, everything[:1, left:]), dim=-1)
        return row_lists(positions, positions < seen).expand(self.geometry.Hkv, -1)

    def select(self, index: Tensor) -> None:
        super().select(index)
        if self.chosen is not None:
            self.chosen = self.chosen.index_select(0, index)
