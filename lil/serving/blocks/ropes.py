"""Rotary embeddings from the table of cosines and sines that an engine keeps."""

from __future__ import annotations

import torch
from torch import Tensor


class RopeTable:
    """Turns vectors from one position to another, in float32.

    The table has cosines and sines of each position, side by side, (positions, R); the first R of D
    numbers of a head are turned. Pairs are of two halves, or of two neighbours. A factor on cosines
    and sines, as some models have, is taken out.
    """

    def __init__(self, table: Tensor, halves: bool) -> None:
        cos, sin = table.float().chunk(2, dim=-1)
        length = torch.hypot(cos, sin)
        self.cos, self.sin, self.halves = cos / length, sin / length, halves
        self.turned = 2 * cos.shape[-1]

    def to_start(self, x: Tensor, positions: Tensor) -> Tensor:
        """Vectors (N, ..., D) turned from their positions (N,) to position 0."""
        return self._turn(x, self.cos[positions], -self.sin[positions])

    def shift(self, x: Tensor, positions: Tensor, to: int) -> Tensor:
        """Vectors (N, ..., D) turned from their positions (N,) to position `to`."""
        cos, sin = self.cos[positions], -self.sin[positions]
        c, s = self.cos[to], self.sin[to]
        return self._turn(x, cos * c - sin * s, sin * c + cos * s)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = (len(cos), *([1] * (x.dim() - 2)), cos.shape[-1])
        cos, sin = cos.view(shape), sin.view(shape)
        part, rest = x[..., : self.turned].float(), x[..., self.turned :].float()
        a, b = part.chunk(2, dim=-1) if self.halves else (part[..., ::2], part[..., 1::2])
        pairs = (a * cos - b * sin, b * cos + a * sin)
        done = torch.cat(pairs, -1) if self.halves else torch.stack(pairs, -1).flatten(-2)
        return torch.cat((done, rest), dim=-1)
