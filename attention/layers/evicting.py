"""Base class of methods that drop tokens: a method answers what each slot is worth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention.core.kernels import added, dense, group
from attention.core.slots import Slots
from attention.core.step import Counts, DeviceStep, Step
from attention.engines import QKV, gpu
from attention.layers.bounded import Bounded
from attention.layers.layer import Geometry, Method, fixed, gather, row_lists


class Evicting(Bounded):
    """Keeps budget - 1 tokens per row and KV head after each step, so that budget are read next.

    The next token overwrites the one dropped, so slots are in no order. A method answers `worth`,
    and `newest` or `stays` where it has a window. What it remembers per slot for it is registered
    with `remember` and updated in `learn`. The slots worth least are lost, among equals the newest.
    """

    learners: int | None = None  # newest queries of a forward that `learn` needs; None for all

    def __init__(self, geometry: Geometry, backend: Method) -> None:
        super().__init__(geometry, backend)
        # A memory (B, Hkv, S) that in decode is the sum of what slots get of all query heads, and
        # nothing else: it is added up while attending, and `learn` is called for prompts only.
        self.summed: Slots | None = None
        # Where the next token goes: behind the last one, or over the one dropped.
        self.next = self.slots("next", dtype=torch.int64, limit=1)

    def learn(self, mass: Tensor, step: Step) -> None:
        """Take in the probability each of the first S slots received, (B, Hkv, G, S).

        It is summed over the forward's queries, of which each counts as much as `counts` says.
        """

    def newest(self, prompt: Counts) -> Counts | None:  # noqa: ARG002
        """How many newest tokens stay where so many of a prompt do, (B,) each; None for none."""
        return None

    def stays(self, step: Step) -> Tensor | None:
        """Positions from which on a row's tokens must stay, (B,); None for none."""

        def first() -> Tensor | None:
            newest = self.newest(self.staying(step.prompt))
            return None if newest is None else step.seen_tokens - step.tensor(newest - 1)

        return step.memo(("recent", type(self)), first)

    @abstractmethod
    def worth(self, S: int, step: Step) -> Tensor:
        """What each of the first S slots is worth, (B, Hkv, S); inf where it must stay.

        Answers for empty slots and for rows below the budget are not used.
        """

    def spared(self, prompt: Counts) -> Counts:
        """First tokens of rows that stay, (B,), where so many of their prompts do."""
        return prompt

    def kept_or(self, worth: Tensor, step: Step) -> Tensor:
        """What slots are worth, inf where they hold a token of a prompt that stays."""
        if not self.keeps_prompt:
            return worth
        position = self.position.data[:, :, : worth.shape[2]]
        staying = self.staying
        end = step.memo("prompt", lambda: step.tensor(staying(step.prompt))[:, None, None])
        # Empty slots have a position below 0.
        return worth.masked_fill((position >= 0) & (position < end), float("inf"))

    def counts(self, step: Step) -> Tensor | None:
        """How much each query of a prefill counts in `learn`, (B or 1, T); None for 1 each."""
        return step.real()

    def check(self, step: Step) -> None:
        self.check_budget(min(step.longest, self.limit))

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.check(step)
        g, S, occupancy = self.geometry, min(step.longest, self.limit), step.occupancy(self.limit)
        if self.k.capacity < S:
            for slots in self.per_slot:
                slots.fit(S)
        first = step.flat(np.zeros_like(step.past), g.Hkv, self.k.capacity, "first")
        arriving = (*self.incoming(k, v, step), *((slots, None) for slots in self.memories))
        g.engine.put(arriving, first + self.next.data.view(-1))
        qkv = QKV(group(q, g.Hkv, scaling), self.k.data, self.v.data, g.sink_logits)
        if self.summed is not None:
            out = g.engine.attend_with_mass(qkv, occupancy, self.summed.data)
        else:
            learns = type(self).learn is not Evicting.learn
            out, probs, _ = g.engine.attend(qkv, occupancy, probs=learns)
            if probs is not None:
                self.learn(probs, step)
        if step.longest < self.limit:
            self.next.data.copy_(step.seen_tokens[:, None, None])
        else:
            self.next.data = self.loser(S, step)
        return out

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        if not self.hooked:
            return super().step(q, k, v, scaling, counts)
        assert self.store is not None
        splits = gpu.attend_splits(counts, self.store, q, k, v, scaling, logits=True)
        out = gpu.join_splits(counts, splits)
        row_numbers = counts.seen, self.number(counts, "spared"), self.number(counts, "recent")
        numbers = (x[: len(q)] for x in row_numbers)
        with self.hooking(len(q)):
            self.drop(gpu.probabilities(counts, splits), *numbers)
        return out

    def drop(self, probs: Tensor, past: Tensor, spared: Tensor, recent: Tensor) -> None:
        """What follows attention in a step of rows (R,), by hooks; probs are (R, Hkv, G, S)."""
        for memory in self.memories:
            # A place that is free may name any slot.
            at = self.next.data.clamp(max=memory.capacity - 1)
            tail = memory.data.shape[3:]
            at = at.view(*at.shape, *(1 for _ in tail)).expand(*at.shape, *tail)
            memory.data.scatter_(2, at, memory.fill)
        window = type(self).newest is not Evicting.newest
        known: dict[Hashable, Any] = {
            "prompt": spared[:, None, None],
            ("recent", type(self)): past + 2 - recent if window else None,
            ("all full", self.limit): False,
        }
        step, S = DeviceStep(past, known), probs.shape[-1]
        if self.summed is not None:
            self.summed.data[:, :, :S] += added(probs, 2)
        elif type(self).learn is not Evicting.learn:
            self.learn(probs, step)
        self.next.data = self.loser(S, step)

    def rehearse(self, step: DeviceStep) -> None:
        g, none = self.geometry, torch.zeros_like(step.past_tokens)
        probs = self.k.data.new_zeros((step.rows, g.Hkv, g.G, self.k.capacity), dtype=g.wide)
        self.drop(probs, step.past_tokens, none, none)

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        numbers = self.number(counts, "spared"), self.number(counts, "recent")
        hooked = gpu.Eviction("", fixed(self.next)[0])
        evicts = hooked if self.hooked else self.eviction(*numbers)
        more = {"position": fixed(self.position)[0], "eviction": evicts}
        return self.store_of(self.k, self.v, counts.seen, self.limit, "next", **more)

    def eviction(self, spared: Tensor, recent: Tensor) -> gpu.Eviction:
        """How kernels choose what is lost."""
        raise NotImplementedError(self.geometry.method)

    def row_numbers(self, prompts: Counts) -> dict[str, Counts]:
        staying = self.staying(prompts)
        newest = self.newest(staying)
        recent = np.zeros_like(prompts) if newest is None else newest
        return {"spared": self.spared(staying), "recent": recent}

    def loser(self, S: int, step: Step) -> Tensor:
        """The slot the next token overwrites, (B, Hkv, 1)."""
        lost = self.geometry.engine.lowest(
            self.kept_or(self.worth(S, step), step), self.position.data[:, :, :S], self.stays(step)
        )
        if step.memo(("all full", self.limit), lambda: bool((step.seen >= self.limit).all())):
            return lost
        seen = step.seen_tokens[:, None, None]
        full = step.memo(("full", self.limit), lambda: seen >= self.limit)
        return torch.where(full, lost, seen)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        stored_tokens, sinks = self.kept(step.past), self.geometry.sink_logits
        self.lay_out(k, v, stored_tokens, step)
        keys, values = self.k.data, self.v.data
        last = step.last_visible(stored_tokens, "evicting")
        square = not stored_tokens.any() and not step.padded
        learns = type(self).learn is not Evicting.learn
        first = max(0, step.T - self.learners) if learns and self.learners else 0
        if first or not learns:  # by kernels that write no probabilities
            out = dense(q, keys, values, scaling, last, square, sinks)
        if learns:
            counts, place = self.counts(step), (last[:, first:], square and not first)
            counts = None if counts is None else counts[:, first:]
            part, mass = self.geometry.engine.dense_with_mass(
                q[:, :, first:], keys, values, scaling, *place, counts, sink_logits=sinks
            )
            out = out if first else part
            self.learn(mass, step)
        self.cut(stored_tokens + step.new, step)
        return out

    def lay_out(self, k: Tensor, v: Tensor, stored_tokens: Counts, step: Step) -> None:
        """Put what is held in order of age and the new tokens behind it, beyond the budget."""
        most = int(stored_tokens.max())
        position, slot = self.position.data, torch.arange(self.k.capacity, device=step.device)
        gone = (slot == self.next.data) | (position < 0)
        # Kept slots, oldest first.
        order = position.masked_fill(gone, torch.iinfo(torch.int32).max).argsort(-1)[:, :, :most]
        arriving = (*self.incoming(k, v, step), *((slots, None) for slots in self.memories))
        for slots, new in arriving:
            if new is None:
                shape = (*slots.data.shape[:2], step.T, *slots.data.shape[3:])
                new = slots.data.new_full(shape, slots.fill)
            slots.data = step.join(gather(slots.data, order), stored_tokens, new, slots.fill)

    def cut(self, counts: Counts, step: Step) -> None:
        """Keep budget - 1 of the tokens laid out and return to the slots of the budget."""
        remaining = np.minimum(counts, self.limit - 1)
        most, S = int(remaining.max()), int(counts.max())
        if most < S:
            worth = self.kept_or(self.worth(S, step), step)
            slot = torch.arange(S, device=step.device)
            empty = slot >= step.tensor(counts)[:, None, None]
            stays = self.stays(step)
            if stays is not None:
                young = self.position.data[:, :, :S] >= stays[:, None, None]
                worth = worth.masked_fill(young, float("inf"))
            worth = worth.masked_fill(empty, float("-inf"))
            order = torch.sort(worth, dim=-1, descending=True, stable=True).indices
            # Kept slots in order of age; in rows below the budget the empty ones end up last.
            index = order[:, :, :most].sort(dim=-1).values
            for slots in self.per_slot:
                slots.data = gather(slots.data, index)
        for slots in self.per_slot:
            data = slots.data
            slots.resize(0)
            slots.fit(min(most + 1, self.limit))
            slots.data[:, :, :most] = data[:, :, :most]
        self.next.fit(1)
        self.next.data.copy_(step.tensor(remaining)[:, None, None])

    def kept(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.limit - 1)

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.limit)

    def kept_positions(self, row: int, seen: int) -> Tensor:  # noqa: ARG002
        position = self.position.data[row].long()
        slot = torch.arange(position.shape[-1], device=position.device)
        return row_lists(position, (position >= 0) & (slot != self.next.data[row]))

    def read_positions(self, row: int, seen: int) -> Tensor:  # noqa: ARG002
        position = self.position.data[row].long()
        return row_lists(position, position >= 0)
