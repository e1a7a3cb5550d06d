"""Noise: full attention whose output carries noise: a control, not a method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from attention.contract import Backend, Geometry, KeepAll, Step, check_int, check_number, draws

# Numbers of noise that are made at once.
NUMBERS_AT_ONCE = 1 << 22


class NoiseLayer(KeepAll):
    """A number of noise follows from where it is added, so nothing is remembered or drawn."""

    def __init__(self, geometry: Geometry, backend: Noise) -> None:
        super().__init__(geometry, backend)
        self.noise = backend.noise
        Hq, D, device = geometry.Hq, geometry.D, geometry.device
        head = draws.words_of_heads(backend.seed, geometry.index, Hq, device)
        self.place = draws.mix(head[:, None] + torch.arange(D, device=device))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        out = super().forward(q, k, v, scaling, step)
        if not step.decode and step.decodes(self.exact_until):
            return out  # of columns read in turn, each of which came here by itself
        token = step.memo("noised", lambda: draws.mix(step.positions()))
        columns = max(1, NUMBERS_AT_ONCE // (step.rows * self.place.numel()))
        for start in range(0, step.T, columns):
            some = slice(start, start + columns)
            wide = out[:, some].to(self.geometry.wide)
            size = wide.square().mean((2, 3), keepdim=True).sqrt() * self.noise
            out[:, some] = (wide + size * self.numbers(token[:, some])).to(out.dtype)
        return out

    def numbers(self, token: Tensor) -> Tensor:
        """Noise of mean 0 and variance 1, uniform, (B, T, Hq, D), from tokens' words, (B, T)."""
        word = draws.mix(self.place + token[..., None, None])
        unit = (word.to(torch.float64) + 0.5) / (draws.WORD + 1)
        return ((2 * unit - 1) * math.sqrt(3)).to(self.geometry.wide)


@dataclass(frozen=True, kw_only=True)
class Noise(Backend):
    """Full attention with noise of a stated size on what every token gets of every layer.

    A control: what a method must do better than, which changes nothing but chance. A number of
    noise follows from the seed, the layer, the token's position in its row, the query head and the
    coordinate; it is the same whatever the batch, the order of rows and the chunks of the prompt
    are. Prompts have it too. The model's own sliding layers and dense first layers have none.

    Args:
        noise: its root mean square, as a share of that of a token's output over heads and
            coordinates of the layer; above 0.
        seed: of the numbers, at least 0.
    """

    name: ClassVar[str] = "noise"
    role = "null"
    source: ClassVar[str] = "control: full attention with noise, what chance alone changes"
    layer_class = NoiseLayer
    budget: None = field(default=None, init=False, repr=False)
    noise: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("noise", self.noise, "a number above 0", above=0)
        check_int("seed", self.seed, 0)

    @property
    def exact_until(self) -> float:
        return 0
