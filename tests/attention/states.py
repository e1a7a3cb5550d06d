"""Three ragged rows, and copies of the state a row has in a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention.testing.driving import text as tokens

LENGTHS = (27, 15, 3)
STATS = ("kept_max", "read_max", "read_mean", "keys_read", "bytes")

Record = list[dict[str, Tensor]]


def prompts() -> list[Tensor]:
    return [tokens(n, seed=1 + i) for i, n in enumerate(LENGTHS)]


def record(cache: Any, row: int) -> Record:
    """Copies of all tensors of a row's state, by layer."""
    layers = []
    for layer in cache.layers:
        tensors = {name: slots.data[row].clone() for name, slots in layer.state.items()}
        if hasattr(layer, "stored_tokens"):
            tensors["stored_tokens"] = torch.tensor([[layer.stored_tokens[row]]])
        layers.append(tensors)
    return layers


def same_bits(cache: Any, row: int, want: Record) -> None:
    """The row's state is what was recorded, and nothing follows it."""
    for layer, tensors, wanted in zip(cache.layers, record(cache, row), want, strict=True):
        assert tensors.keys() == wanted.keys()
        for name, x in tensors.items():
            slots = layer.state.get(name)
            n = wanted[name].shape[1]
            assert torch.equal(x[:, :n], wanted[name][:, :n]), name
            if slots is not None:
                assert (x[:, n:] == slots.fill).all(), name
