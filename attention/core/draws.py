"""Numbers that follow from where they are drawn, whatever the batch and the chunks of text."""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF


def mix(x: Tensor) -> Tensor:
    """A one-to-one scrambling of 32-bit words, held in int64, of which the lowest bits count."""
    x = x & WORD
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * factor & WORD
    return x ^ (x >> 16)


def words_of_heads(seed: int, layer: int, heads: int, device: torch.device) -> Tensor:
    """A word for each head of a layer, (heads,); mixed with a position it is a token's number."""
    word = mix(mix(torch.tensor(seed & WORD, device=device)) + layer)
    return mix(word + torch.arange(heads, device=device))
