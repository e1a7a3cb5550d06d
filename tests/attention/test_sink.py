"""Sink: keys that are turned are those that the model would have roped there."""

from __future__ import annotations

import pytest
import torch

import attention
from attention.core.ropes import Rope, rotate
from attention.testing.driving import follow
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_turned_sinks_are_the_sinks_roped_anew(dtype: torch.dtype) -> None:
    """The key in the cache is the unroped key roped to the place right before the window."""
    m = tiny_model("llama", (4, 2), 2, dtype)
    ids = tokens(1, 200)
    raw: list[torch.Tensor] = []
    # First layer: its keys do not depend on what attention read.
    hook = m.model.layers[0].self_attn.k_proj.register_forward_hook(
        lambda *call: raw.append(call[2].detach())
    )
    with attention.Sink(budget=20).on(m) as cache:
        follow(m, cache, [ids[0, :50]], ids[:, 50:])
        held = cache.layers[0].state["k"].data[:, :, :4]
    hook.remove()
    keys = torch.cat(raw, dim=1)[:, :4].unflatten(-1, (2, -1)).transpose(1, 2)
    gone = torch.arange(4)[None] + 200 - 20
    cos, sin = (x.unsqueeze(1) for x in m.model.rotary_emb(keys, gone))
    half = torch.cat((-keys[..., keys.shape[-1] // 2 :], keys[..., : keys.shape[-1] // 2]), -1)
    want = keys * cos + half * sin
    assert (held - want).abs().max() <= (1e-6 if dtype is torch.float32 else 1e-12)


def test_turning_is_exact_whatever_the_module_rounds() -> None:
    """A turn undoes what the model did: there and back is the identity, scaled tables included."""

    class Yarn(torch.nn.Module):
        rope_type = "yarn"

        def forward(self, x, position_ids):
            angle = position_ids[..., None].float() * 0.37 ** torch.arange(4)
            angle = torch.cat((angle, angle), -1)
            return (angle.cos() * 1.3).to(x.dtype), (angle.sin() * 1.3).to(x.dtype)

    rope, x = Rope(Yarn()), torch.randn(2, 3, 5, 8, dtype=torch.float64)
    a, b = torch.tensor([[3, 9, 2, 400, 0]]), torch.tensor([[77, 1, 2, 5, 12]])
    there = rotate(x, rope.turn(a, b, x))
    assert (there - x).abs().max() > 0.1
    assert (rotate(there, rope.turn(b, a, x)) - x).abs().max() < 1e-12
    assert (rotate(x, rope.turn(a, a, x)) - x).abs().max() < 1e-12
    assert (there[:, :, 2] - x[:, :, 2]).abs().max() < 1e-12
