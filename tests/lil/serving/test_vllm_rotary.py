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
    """A layer whose rotary embedding is there and not used; `fails` where it needs a step."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.k, self.attn, self.fails = nn.Linear(WIDTH, HEADS * SIZE), Attention(), fails
        angles = torch.arange(512)[:, None] / 1e4 ** (torch.arange(0, SIZE, 2) / SIZE)
        table = torch.cat((angles.cos(), angles.sin()), -1)
        self.rotary_emb = SimpleNamespace(cos_sin_cache=table, is_neox_style=True)

    def forward(self, _positions: Tensor, states: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("no context of a step")
        key = self.k(states)
        attended: Tensor = self.attn(key, key, key)
        return attended


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (False, r"layers.0.attn = 'keys of Layer': .*turned by the"),
        (True, "takes positions and states.*no context"),
    ],
)
def test_layers_that_do_not_turn_their_keys_are_refused(fails: bool, message: str) -> None:
    """Layers that do are in `engines/test_vllm_sparse.py`."""
    layer: Any = Layer(fails)
    with pytest.raises(InvalidValue, match=message):
        RopeTables(WIDTH, torch.float32).of("layers.0.attn", layer.attn, layer)
    assert "forward" not in vars(layer.attn)  # it attends as before
