"""Whether a layer of vLLM turns its keys is tried, not believed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from attention.errors import InvalidValue
from lil.serving.vllm.sparse.rotary import RopeTables

WIDTH, HEADS, SIZE = 48, 2, 32


class Attention(nn.Module):
    """Where an engine's layer attends."""

    num_kv_heads = HEADS

    def forward(self, _query: Tensor, key: Tensor, _value: Tensor) -> Tensor:
        return key


class Layer(nn.Module):
    """A layer whose rotary embedding is there, and may not be used.

    Args:
        turns: whether it is.
        halves: whether a pair is made of the two halves.
        declared: what its rotary embedding says of `halves`.
    """

    def __init__(
        self, turns: bool = True, halves: bool = True, declared: bool | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.k, self.attn = nn.Linear(WIDTH, HEADS * SIZE), Attention()
        self.turns, self.halves = turns, halves
        self.angles = torch.arange(512)[:, None] / 1e4 ** (torch.arange(0, SIZE, 2) / SIZE)
        self.rotary_emb = SimpleNamespace(
            cos_sin_cache=torch.cat((self.angles.cos(), self.angles.sin()), -1),
            is_neox_style=halves if declared is None else declared,
        )

    def forward(self, positions: Tensor, states: Tensor) -> Tensor:
        key = self.k(states).view(-1, HEADS, SIZE)
        if self.turns:
            key = torch.stack([self.turned(k, p) for k, p in zip(key, positions, strict=True)])
        attended: Tensor = self.attn(key, key.flatten(1), key)
        return attended

    def turned(self, key: Tensor, position: Tensor) -> Tensor:
        """Pair by pair, by complex numbers."""
        pairs = key.view(HEADS, 2, -1).transpose(1, 2) if self.halves else key.view(HEADS, -1, 2)
        turn = torch.polar(torch.ones(SIZE // 2), self.angles[position])
        done = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        return (done.transpose(1, 2) if self.halves else done).reshape(HEADS, SIZE)


class Elsewhere(Layer):
    """A layer that needs the context of a step."""

    def forward(self, *_: Tensor) -> Tensor:
        raise RuntimeError("no context of a step")


def rope(layer: Any) -> Any:
    return RopeTables(WIDTH, torch.float32).of("layers.0.attn", layer.attn, layer)


@pytest.mark.parametrize("halves", [True, False])
def test_a_layer_that_turns_its_keys_is_accepted(halves: bool) -> None:
    layer = Layer(halves=halves)
    assert rope(layer).turned == SIZE
    assert "forward" not in vars(layer.attn)  # it attends as before


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Layer(turns=False), r"layers.0.attn = 'keys of Layer': .*turned by the"),
        (Layer(halves=True, declared=False), "turned by the"),
        (Elsewhere(), "takes positions and states.*no context"),
    ],
    ids=["never turned", "other pairs", "not seen"],
)
def test_other_layers_are_refused(layer: Layer, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        rope(layer)
    assert "forward" not in vars(layer.attn)
