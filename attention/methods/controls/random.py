"""Random: the first tokens, the newest, and a random sample of those between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attention.contract.backend import Backend
from attention.core.step import Step
from attention.errors import check_int
from attention.layers.evicting import Evicting
from attention.layers.layer import Geometry, Layer

WORD = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Random(Backend):
    """Keeps the first `sinks` tokens, the newest, and a uniform sample of the tokens between.

    A control: what a budget is worth without any choice. Every token has a number drawn from the
    seed, the layer, the KV head and its position, and the smallest go. The sample is uniform at
    any time, and the same whatever the text, the batch and the chunks of the prompt are.

    Args:
        budget: tokens a decode query may read, current token included; at least sinks + recent.
        sinks: first tokens kept for ever.
        recent: newest tokens kept, current one included; (budget - sinks) // 2, but at least 1,
            by default.
        seed: of the numbers.

    Raises:
        InvalidValue: a parameter is out of range.
    """

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "control: a random sample of the tokens between first and newest"
    budget: int
    sinks: int = 4
    recent: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("sinks", self.sinks, 0)
        check_int("seed", self.seed, 0)
        if self.recent is not None:
            check_int("recent", self.recent, 1)
        least = max(self.sinks + (self.recent or 1), 2)
        check_int("budget", self.budget, least, f"an integer of at least sinks + recent = {least}")

    @property
    def exact_until(self) -> float:
        return self.budget

    def params(self) -> dict[str, Any]:
        recent = max((self.budget - self.sinks) // 2, 1) if self.recent is None else self.recent
        return super().params() | {"recent": recent}

    def layer(self, geometry: Geometry) -> Layer:
        return RandomLayer(geometry, self.budget, self.sinks, self.params()["recent"], self.seed)


class RandomLayer(Evicting):
    """A token's number follows from its position, so nothing is remembered."""

    def __init__(self, geometry: Geometry, budget: int, sinks: int, recent: int, seed: int) -> None:
        super().__init__(geometry, budget)
        self.sinks, self.recent = sinks, recent
        layer = mix(torch.tensor(seed & WORD, device=geometry.device)) + geometry.index
        heads = torch.arange(geometry.Hkv, device=geometry.device)
        self.head = mix(mix(layer & WORD) + heads & WORD)[:, None]

    def worth(self, S: int, step: Step) -> Tensor:
        position = self.position.data[:, :, :S].long()
        number = mix(self.head + position & WORD).to(torch.float64)
        stays = position >= (step.seen_tokens - self.recent + 1)[:, None, None]
        return number.masked_fill_(stays | (position < self.sinks), float("inf"))


def mix(x: Tensor) -> Tensor:
    """A one-to-one scrambling of 32-bit words, held in int64."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * factor & WORD
    return x ^ (x >> 16)
