"""Base class of methods that drop tokens: slots that are reused, and the token in each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention.core.slots import Slots
from attention.core.step import Counts, Step
from attention.layers.layer import Geometry, Layer, Method


class Bounded(Layer):
    """At most `budget` tokens per row and KV head, each with its position and what is known of it.

    With `keep_prompt` a row's prompt, or its first tokens, stay; the method has what is left.
    """

    def __init__(self, geometry: Geometry, backend: Method) -> None:
        super().__init__(geometry, backend)
        assert self.budget is not None
        self.limit = limit = self.budget
        self.keeps_prompt = getattr(backend, "keep_prompt", False)
        self.k = self.slots("k", (geometry.D,), limit=limit)
        self.v = self.slots("v", (geometry.D,), limit=limit)
        # The position of the token in each slot.
        self.position = self.slots("position", dtype=torch.int32, fill=-1, limit=limit)
        # What a method remembers of a token.
        self.memories: list[Slots] = []
        # Everything that follows a token from slot to slot.
        self.per_slot = [self.k, self.v, self.position]

    def remember(self, name: str, tail: tuple[int, ...] = (), **how: Any) -> Slots:
        """Something kept per slot, (B, Hkv, S, *tail); a new token starts with `fill`, by 0."""
        memory = self.slots(name, tail, limit=self.limit, **how)
        self.memories.append(memory)
        self.per_slot.append(memory)
        return memory

    def incoming(self, k: Tensor, v: Tensor, step: Step) -> tuple[tuple[Slots, Tensor], ...]:
        """Slots, and what the new tokens bring to them, (B, Hkv, T, ...)."""
        Hkv = k.shape[1]
        position = step.memo(
            ("arriving", Hkv), lambda: step.positions()[:, None].to(torch.int32).repeat(1, Hkv, 1)
        )
        return (self.k, k), (self.v, v), (self.position, position)

    def least_room(self) -> int:
        return 2

    def row_bytes(self, seen: Counts) -> Counts:
        per_slot = sum(slots.width for slots in self.per_slot)
        return self.kept(seen) * (self.geometry.Hkv * per_slot)
