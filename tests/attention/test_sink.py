"""Sink: which tokens stay, and at what distance they are seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from driving import decode, follow, model, prefill, tokens

import attention
from attention.core.ropes import Rope, rotate
from tests.attention.oracles.models import tiny_model


@pytest.mark.parametrize("positions", ["cache", "absolute"])
@pytest.mark.parametrize(("budget", "sinks"), [(16, 4), (5, 4), (7, 0), (9, 8)])
def test_kept_are_the_first_and_the_last(budget: int, sinks: int, positions: str) -> None:
    m = model()
    backend = attention.Sink(budget=budget, sinks=sinks, positions=positions)
    with backend.on(m) as cache:
        prefill(m, cache, [tokens(30), tokens(3, seed=1)])
        for column in tokens(2, 20).T:
            for seen, rows in zip(
                cache.seen.tolist(),
                zip(*map(cache.kept_positions, range(2)), strict=True),
                strict=True,
            ):
                window = range(max(seen - budget + sinks, min(seen, sinks)), seen)
                want = [*range(min(sinks, seen)), *window]
                for layer in rows:
                    assert layer.tolist() == [want, want]
            decode(m, cache, column[:, None])


def test_the_position_modes_agree_until_the_first_eviction() -> None:
    m, given = model(), tokens(1, 20)
    logits = []
    for positions in ("cache", "absolute"):
        with attention.Sink(budget=12, positions=positions).on(m) as cache:
            logits.append(follow(m, cache, [tokens(5)], given)[0])
    gap = (logits[0] - logits[1]).abs().amax(-1)
    assert gap[:8].max() <= 1e-12
    assert gap[8] > 1e-9


def test_the_modes_agree_without_sinks() -> None:
    m, given = model(), tokens(1, 20)
    logits = []
    for positions in ("cache", "absolute"):
        with attention.Sink(budget=8, sinks=0, positions=positions).on(m) as cache:
            logits.append(follow(m, cache, [tokens(5)], given))
    assert torch.equal(*logits)


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


@pytest.mark.parametrize("sinks", [0, 4])
def test_hf_sinkcache_drifts_to_twice_the_distance(sinks: int) -> None:
    """First layer keys, roped by the model where each must have ended up."""
    m, ids, budget, prompt = model(), tokens(1, 60), 20, 30
    raw: list[torch.Tensor] = []
    hook = m.model.layers[0].self_attn.k_proj.register_forward_hook(
        lambda *call: raw.append(call[2].detach())
    )
    backend = attention.Sink(budget=budget, sinks=sinks, positions="hf_sinkcache")
    with backend.on(m) as cache:
        follow(m, cache, [ids[0, :prompt]], ids[:, prompt:])
        held = cache.layers[0].state["k"].data
        slots = cache.layers[0].slot_of(np.arange(60))
    hook.remove()
    keys = torch.cat(raw, dim=1).unflatten(-1, (2, -1)).transpose(1, 2)
    drifts = set()
    for p in [*range(sinks), *range(60 - budget + sinks, 60)]:
        turns = 0 if p < sinks else sum(max(budget - 1, p + 1, prompt) < s for s in range(61))
        cos, sin = (x.unsqueeze(1) for x in m.model.rotary_emb(keys, torch.tensor([[p - turns]])))
        key = keys[:, :, p : p + 1]
        half = torch.cat((-key[..., key.shape[-1] // 2 :], key[..., : key.shape[-1] // 2]), -1)
        assert (held[:, :, [slots[p]]] - (key * cos + half * sin)).abs().max() < 1e-9
        drifts.add((59 - (p - turns)) / (59 - p) if 59 > p >= sinks else 2)
    assert drifts == {2}


def test_hf_sinkcache_turns_one_step_before_it_drops() -> None:
    m, given = model(), tokens(1, 20)
    logits = []
    for positions in ("hf_sinkcache", "absolute"):
        with attention.Sink(budget=12, positions=positions).on(m) as cache:
            logits.append(follow(m, cache, [tokens(5)], given)[0])
    gap = (logits[0] - logits[1]).abs().amax(-1)
    assert gap[:7].max() <= 1e-12  # up to 11 tokens seen
    assert gap[7:].min() > 1e-9


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


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 4},
        {"budget": 0, "sinks": 0},
        {"budget": 8, "sinks": -1},
        {"budget": 8.0},
        {"budget": True},
        {"budget": 8, "positions": "relative"},
        {"budget": 4, "positions": "hf_sinkcache"},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.Sink(**arguments)
