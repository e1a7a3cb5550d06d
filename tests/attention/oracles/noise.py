"""Oracle of the control `noise`: full attention, and noise number by number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .layer import Layer


class NoiseLayer(Layer):
    """Every output carries noise of a share of its token's root mean square."""

    def __init__(self, *args: Any, noise: float, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise, self.seed = noise, seed

    def forward(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        first = self.n
        out = super().forward(q, k, v)
        for t in range(len(out)):
            size = self.noise * math.sqrt(float(np.mean(np.square(out[t], dtype=np.float64))))
            for h in range(out.shape[1]):
                for d in range(out.shape[2]):
                    out[t, h, d] += size * noise(self.seed, self.index, first + t, h, d)
        return out


def noise(seed: int, layer: int, position: int, head: int, coordinate: int) -> float:
    """A number of variance 1, uniform, that follows from its place."""
    place = mixed(mixed(mixed(mixed(seed) + layer) + head) + coordinate)
    word = mixed(place + mixed(position))
    return (2 * (word + 0.5) / 2**32 - 1) * math.sqrt(3)


def mixed(x: int) -> int:
    """lowbias32 of Chris Wellons' hash prospector: a one-to-one scrambling of 32-bit words."""
    x &= 0xFFFFFFFF
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)
