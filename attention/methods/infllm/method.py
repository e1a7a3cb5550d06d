"""InfLLM: a window, the first tokens, and the blocks whose representatives fit the query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    QKV,
    AttentionOutput,
    Backend,
    Counts,
    DeviceCounts,
    Eviction,
    Geometry,
    InvalidValue,
    Pages,
    Step,
    Store,
    Turn,
    attend,
    check_choice,
    check_int,
    choices,
    fixed,
    group,
    rotate,
    row_lists,
    take_pages,
)
from attention.methods.infllm.blocks import Blocks, Parts


class InfLLMLayer(Blocks):
    """Attends to the window at true distances and to the far tokens chosen at one distance."""

    def __init__(self, geometry: Geometry, backend: InfLLM) -> None:
        sets = geometry.Hkv if backend.selection == "kv_head" else 1
        super().__init__(geometry, backend, backend.parts, sets)
        # Far tokens are at true distances too; choosing is as ever.
        self.absolute = backend.far_position == "absolute"
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

    def stored(self, counts: DeviceCounts) -> Store:
        self.geometry.rope.table(counts.tokens, self.near_k.data)  # before `step` asks for it
        learns = Eviction("mass", memory=fixed(self.mass)[0])
        near = (self.near_k, self.near_v, counts.seen, self.n_local)
        return self.store_of(*near, "stored", eviction=learns)

    def step(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: DeviceCounts) -> Tensor:
        assert self.store is not None
        near, parts = (self.near_k, self.near_v, self.mass), self.parts
        far = choices().Far(*fixed(*near, self.far_k, self.far_v, self.left_mass, self.means))
        turn = self.geometry.rope.table(counts.tokens, far.far_k)
        seen, live = counts.seen, counts.live
        scores = choices().estimate_blocks(
            q, k, v, scaling, far, turn, seen, live, parts.n_init, parts.repr_topk
        )
        if counts.dense:
            return attend(counts, self.store, q, k, v, scaling)
        options = {"page": parts.block, "n_init": parts.n_init, "window": parts.n_local}
        self.traces = table, read = choices().select(
            scores, seen, live, parts.topk, heads=self.geometry.Hkv, **options
        )
        pages = Pages(far.far_k, far.far_v, table, read, parts.block, parts.n_init, turn)
        return attend(counts, self.store, q, k, v, scaling, pages)

    def settle(self, step: Step) -> bool:  # noqa: ARG002
        self._chosen = None
        return False

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
        return engine.attend_pages(qkv, every, each, self.block, lse=True), slots - self.spare(
            slots
        )

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
        left = self.left(step.seen)
        number = np.arange(int(self.far_slot(left.max() - 1)) // self.block + 1)
        first = number < self.init_pages
        start = np.where(first, number, number - self.init_pages) * self.block
        firsts, blocked = np.minimum(left, self.n_init), self.blocked(step.seen)
        stored_tokens = np.where(first, firsts[:, None], blocked[:, None])
        counts = np.clip(stored_tokens - start, 0, self.block)
        return step.tensor(number)[None, None], step.tensor(counts)[:, None]

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

    def spare(self, S: int) -> int:
        """Slots of the first pages, among S, that never hold a token."""
        return max(0, min(S, self.init_pages * self.block) - self.n_init)

    def choose(self, far: Tensor, full: Counts, step: Step) -> tuple[Tensor, Tensor]:
        """Pages of each set, and the tokens to read of each, (B, sets, U)."""
        g, B, sets = self.geometry, step.rows, self.sets
        summed = far.to(g.wide).sum(2).view(B, sets, 1, -1)
        competing = step.holding(full, "blocks")

        def always() -> tuple[Tensor, Tensor]:
            """The first pages and the newest, and their tokens."""
            blocked, first = self.blocked(step.seen), np.minimum(self.left(step.seen), self.n_init)
            pages = np.broadcast_to(np.arange(self.init_pages), (B, self.init_pages))
            rest = np.clip(first[:, None] - pages * self.block, 0, self.block)
            pages = np.concatenate((pages, full[:, None] + self.init_pages), axis=1)
            newest = np.clip(blocked - full * self.block, 0, self.block)
            counts = np.concatenate((rest, newest[:, None]), axis=1)
            return step.tensor(pages), step.tensor(counts)

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
