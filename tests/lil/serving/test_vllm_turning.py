"""Whether a layer of vLLM turns its keys is tried, not believed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from attention.errors import InvalidValue
from lil.serving.vllm.sparse.turning import RopeTables

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
        base: of the angles.
        told: what it says of `halves`.
    """

    def __init__(
        self, turns: bool = True, halves: bool = True, base: float = 1e4, told: bool | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.k, self.attn = nn.Linear(WIDTH, HEADS * SIZE), Attention()
        self.turns, self.halves = turns, halves
        angles = torch.arange(512)[:, None] / base ** (torch.arange(0, SIZE, 2) / SIZE)
        self.angles = angles
        self.rotary_emb = SimpleNamespace(
            cos_sin_cache=torch.cat((angles.cos(), angles.sin()), -1),
            is_neox_style=halves if told is None else told,
        )

    def forward(self, positions: Tensor, states: Tensor) -> Tensor:
        key = self.k(states).view(-1, HEADS, SIZE)
        if self.turns:
            key = torch.stack([self.turned(one, at) for one, at in zip(key, positions.tolist(),
                                                                       strict=True)])  # fmt: skip
        found: Tensor = self.attn(key, key.flatten(1), key)
        return found

    def turned(self, key: Tensor, at: int) -> Tensor:
        """Pair by pair, by complex numbers."""
        pairs = key.view(HEADS, 2, -1).transpose(1, 2) if self.halves else key.view(HEADS, -1, 2)
        turn = torch.polar(torch.ones(SIZE // 2), self.angles[at])
        done = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        return (done.transpose(1, 2) if self.halves else done).reshape(HEADS, SIZE)


def asked(layer: Any) -> Any:
    return RopeTables(WIDTH, torch.float32).of("layers.0.attn", layer.attn, layer)


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("base", [1e4, 1e6])
def test_a_layer_that_turns_its_keys_is_taken(halves: bool, base: float) -> None:
    layer = Layer(halves=halves, base=base)
    assert asked(layer).turned == SIZE
    assert "forward" not in vars(layer.attn)  # it attends as before


@pytest.mark.parametrize(
    "layer",
    [Layer(turns=False), Layer(turns=False, base=1e6), Layer(halves=True, told=False)],
    ids=["never", "never, slow angles", "other pairs"],
)
def test_one_whose_rotary_embedding_is_not_what_turns_them_is_refused(layer: Layer) -> None:
    with pytest.raises(InvalidValue, match=r"layers.0.attn = 'keys of Layer': .*turned by the"):
        asked(layer)
    assert "forward" not in vars(layer.attn)


def test_one_whose_keys_are_not_seen_is_refused() -> None:
    class Other(Layer):
        def forward(self, positions: Tensor, states: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(positions, states + residual)

    class Elsewhere(Layer):
        def forward(self, positions: Tensor, states: Tensor) -> Tensor:
            if len(positions):
                raise RuntimeError("no context of a step")
            return states

    class Past(Layer):
        def forward(self, positions: Tensor, states: Tensor) -> Tensor:
            return states + positions[:, None]

    for layer, said in ((Other(), "residual"), (Elsewhere(), "no context"), (Past(), "nothing")):
        with pytest.raises(InvalidValue, match=f"takes positions and states.*{said}"):
            asked(layer)
        assert "forward" not in vars(layer.attn)


def test_layers_that_share_a_table_share_ours() -> None:
    one, other, apart = Layer(), Layer(), Layer(base=1e6)
    other.rotary_emb.cos_sin_cache = one.rotary_emb.cos_sin_cache
    ropes = RopeTables(WIDTH, torch.float32)
    found = [ropes.of("x", layer.attn, layer) for layer in (one, other, apart)]
    assert found[0] is found[1]
    assert found[0] is not found[2]
