"""Random: the first tokens, the newest, and a random sample of those between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    AUTO,
    WORD,
    Counts,
    Dropping,
    Evicting,
    Geometry,
    Step,
    check_int,
    fixed,
    gpu,
    mix,
    words_of_heads,
)


class RandomLayer(Evicting):
    """A token's number follows from its position, so nothing is remembered of tokens."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Random) -> None:
        super().__init__(geometry, backend)
        self.sinks, self.recent = backend.sinks, backend.recent
        self.halves = backend.recent == usual(backend.budget, backend.sinks)
        where = geometry.index, geometry.Hkv, geometry.device
        self.head = words_of_heads(backend.seed, *where)[:, None]
        self.numbers = self.drawn(0)

    def drawn(self, positions: int) -> Tensor:
        """The numbers of positions from -1, where slots are empty, to below this many, by head."""
        position = torch.arange(-1, positions, device=self.head.device)
        number = mix(self.head + position & WORD).to(torch.float64)
        return number.masked_fill_(position < self.sinks, float("inf"))

    def worth(self, S: int, step: Step) -> Tensor:
        position, (heads, known) = self.position.data, self.numbers.shape
        if position.shape[2] > S:
            position = position[:, :, :S]
        if known <= step.longest:
            known = 1 << max(step.longest, 1023).bit_length()
            self.numbers = self.drawn(known - 1)
        begin = step.memo(
            ("random", known), lambda: step.tensor(np.arange(heads)[:, None] * known + 1)
        )
        return self.numbers.take(position + begin)

    def least_room(self) -> int:
        return 2 if self.halves else max(self.recent, 2)

    def newest(self, prompt: Counts) -> Counts:
        if not (self.keeps_prompt and self.halves):
            return np.full_like(prompt, self.recent)
        newest: Counts = np.maximum((self.limit - np.maximum(prompt, self.sinks)) // 2, 1)
        return newest

    def spared(self, prompt: Counts) -> Counts:
        first: Counts = np.maximum(super().spared(prompt), self.sinks)
        return first

    def eviction(self, spared: Tensor, recent: Tensor) -> gpu.Eviction:
        (following,) = fixed(self.next)
        return gpu.Eviction(
            "number", following, spared, recent, numbers=self.head[:, 0].contiguous()
        )


def usual(budget: int, first: int) -> int:
    """Newest tokens of a budget that begins with these first ones, by default."""
    return max((budget - first) // 2, 1)


@dataclass(frozen=True, kw_only=True)
class Random(Dropping):
    """Keeps the first `sinks` tokens, the newest, and a uniform sample of the tokens between.

    A control: what a budget is worth without any choice. Every token has a number drawn from the
    seed, the layer, the KV head and its position, and the smallest go. The sample is uniform at
    any time, and the same whatever the text, the batch and the chunks of the prompt are.

    Args:
        budget: tokens a decode query may read, current token included; at least sinks + recent.
        sinks: first tokens kept for ever.
        recent: newest tokens kept, current one included; (budget - sinks) // 2, but at least 1,
            by default.
        keep_prompt: the prompt stays, and its length takes the place of `sinks` where it is larger.
        seed: of the numbers.
    """

    name: ClassVar[str] = "random"
    role = "control"
    source: ClassVar[str] = "control: a random sample of the tokens between first and newest"
    layer_class = RandomLayer
    budget: int
    sinks: int = 4
    recent: int = AUTO
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("sinks", self.sinks, 0)
        check_int("seed", self.seed, 0)
        if self.recent is AUTO:
            self._resolve("recent", usual(self.budget, self.sinks))
        check_int("recent", self.recent, 1)
        least = max(self.sinks + self.recent, 2)
        check_int("budget", self.budget, least, f"an integer of at least sinks + recent = {least}")
