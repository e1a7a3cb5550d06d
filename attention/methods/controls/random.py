"""Random: the first tokens, the newest, and a random sample of those between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    AUTO,
    Compressing,
    Counts,
    Dropping,
    Evicting,
    Geometry,
    InvalidValue,
    Layer,
    Step,
    check_int,
    draws,
    fixed,
    gpu,
)


class RandomLayer(Evicting):
    """A token's number follows from its position, so nothing is remembered of tokens."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Random) -> None:
        super().__init__(geometry, backend)
        self.sinks, self.recent = backend.sinks, backend.recent
        self.halves = backend.recent == usual(backend.budget, backend.sinks)
        where = geometry.index, geometry.Hkv, geometry.device
        self.head = draws.words_of_heads(backend.seed, *where)[:, None]
        self.numbers = self.drawn(0)

    def drawn(self, positions: int) -> Tensor:
        """The numbers of positions from -1, where slots are empty, to below this many, by head."""
        position = torch.arange(-1, positions, device=self.head.device)
        number = draws.mix(self.head + position).to(torch.float64)
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
        if not self.halves:
            return np.full_like(prompt, self.recent)
        newest: Counts = np.maximum((self.limit - np.maximum(prompt, self.sinks)) // 2, 1)
        return newest

    def spared(self, prompt: Counts) -> Counts:
        return np.maximum(super().spared(prompt), self.sinks)

    def eviction(self, spared: Tensor, recent: Tensor) -> gpu.Eviction:
        (following,) = fixed(self.next)
        head = self.head[:, 0].contiguous()
        return gpu.Eviction("number", following, spared, recent, numbers=head)


class RandomBlocksLayer(Compressing):
    """Each cut draws anew: a number follows from a token's position and the tokens seen."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Random) -> None:
        super().__init__(geometry, backend)
        where = geometry.index, geometry.Hkv, geometry.device
        self.backend, self.head = backend, draws.words_of_heads(backend.seed, *where)[:, None]

    def target(self, seen: int, room: int) -> int:  # noqa: ARG002
        return self.limit - self.backend.every

    def least_room(self) -> int:
        return self.backend.every + self.backend.recent + 1

    def spared(self, prompt: Counts) -> Counts:
        b = self.backend
        first: Counts = np.maximum(prompt, b.sinks)
        sample = b.budget - b.every - b.recent
        return np.maximum(first, np.minimum(first + b.prefix, sample - b.every))

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        S = k.shape[2]
        position = self.position.data.index_select(0, rows)[:, :, :S].long()
        seen = position[:, :, -1:] + 1
        number = draws.mix(draws.mix(self.head + seen) + position).to(torch.float64)
        number[:, :, S - self.backend.recent :].fill_(float("inf"))
        return number.masked_fill_(position < self.backend.sinks, float("inf"))


def usual(budget: int, first: int) -> int:
    """Newest tokens of a budget that begins with these first ones, by default."""
    return max((budget - first) // 2, 1)


@dataclass(frozen=True, kw_only=True)
class Random(Dropping):
    """Keeps the first `sinks` tokens, the newest, and a uniform sample of the tokens between.

    A control: what a budget is worth without any choice. Every token has a number drawn from the
    seed, the layer, the KV head and its position, and the smallest go. The sample is uniform at
    any time, and the same whatever the text, the batch and the chunks of the prompt are.

    With `every` above 1 it is Random Attention, arXiv 2609.03430: a row that reaches the budget is
    cut to budget - every, and each cut draws anew, so that a token's chance falls with its age. The
    authors cut at multiples of 64 tokens in decode alone; here a row is cut where it is full.

    Args:
        budget: tokens a decode query may read, current token included; at least sinks + recent.
        sinks: first tokens kept for ever.
        recent: newest tokens kept, current one included; by default (budget - sinks) // 2, but at
            least 1, and `every` where that is above 1.
        keep_prompt: the prompt stays, and its length takes the place of `sinks` where it is larger.
        seed: of the numbers.
        every: tokens dropped at once; 1 drops one at each step, by numbers that tokens keep.
        prefix: with keep_prompt and `every` above 1, generated tokens that stay behind the prompt,
            as far as `every` tokens of the sample are left.
    """

    name: ClassVar[str] = "random"
    role = "control"
    source: ClassVar[str] = "control: a random sample of the tokens between first and newest"
    layer_class = RandomLayer
    sinks: int = 4
    recent: int = AUTO
    seed: int = 0
    every: int = field(default=1, metadata={"left_out": 1})
    prefix: int = field(default=0, metadata={"left_out": 0})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("sinks", self.sinks, 0)
        check_int("seed", self.seed, 0)
        each = check_int("every", self.every, 1) == 1
        if self.recent is AUTO:
            self._resolve("recent", usual(self.budget, self.sinks) if each else self.every)
        check_int("recent", self.recent, 1)
        if check_int("prefix", self.prefix, 0) and (each or self.keep_prompt is not True):
            allowed = "0 without keep_prompt=True and every above 1"
            raise InvalidValue("prefix", self.prefix, allowed)
        least, parts = max(self.sinks + self.recent, 2), "sinks + recent"
        if not each:
            least, parts = self.sinks + self.recent + self.every + 1, "sinks + recent + every + 1"
        check_int("budget", self.budget, least, f"an integer of at least {parts} = {least}")

    def layer(self, geometry: Geometry) -> Layer:
        return (RandomLayer if self.every == 1 else RandomBlocksLayer)(geometry, self)
