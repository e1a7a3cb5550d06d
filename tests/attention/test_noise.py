"""The control `noise`: full attention and noise that follows from where it is added."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attention
from attention.methods.controls.noise import NoiseLayer
from attention.methods.controls.random import mix
from attention.testing.driving import OneLayer, decode, prefill
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model


def numbers(heads: int = 4, index: int = 0, tokens: int = 400, **params: int) -> Tensor:
    """(tokens, heads, D)."""
    layer = OneLayer(attention.Noise(**params), heads=(heads, 2), index=index).layer
    assert isinstance(layer, NoiseLayer)
    return layer.numbers(mix(torch.arange(tokens))[None])[0]


def test_numbers_have_no_mean_a_variance_of_1_and_nothing_in_common() -> None:
    found = torch.stack([numbers(index=i, seed=s).flatten() for i, s in ((0, 0), (1, 0), (0, 1))])
    share = 4 / math.sqrt(found.shape[1])  # four standard errors
    assert (found.mean(1).abs() < share).all()
    assert (found.square().mean(1) - 1).abs().max() < share
    assert (torch.corrcoef(found) - torch.eye(3)).abs().max() < share
    # Neighbours along each axis: tokens, heads, coordinates.
    one = numbers()
    for axis in range(3):
        n = one.shape[axis] - 1
        pairs = one.narrow(axis, 0, n).flatten(), one.narrow(axis, 1, n).flatten()
        assert abs(float(torch.corrcoef(torch.stack(pairs))[0, 1])) < share


@pytest.mark.parametrize("size", [1e-3, 0.5])
def test_the_noise_has_the_size_that_was_asked_for(size: float) -> None:
    plain, other = (OneLayer(b, rows=2) for b in (attention.Full(), attention.Noise(noise=size)))
    for T in (300, 1, 1):
        want, got = plain.feed(T), other.feed(T)
        ratio = (got - want).square().mean((2, 3)).sqrt() / want.square().mean((2, 3)).sqrt()
        assert abs(float(ratio.mean()) / size - 1) < 0.3 / math.sqrt(T)


@torch.no_grad()
def test_long_prompts_get_theirs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    m, row = tiny_model(), [tokens(60)]
    with attention.Noise().on(m) as cache:
        want = prefill(m, cache, row)
        monkeypatch.setattr("attention.methods.controls.noise.NUMBERS_AT_ONCE", 7)
        other = cache.new()
        assert torch.equal(prefill(m, other, row), want)
        assert torch.equal(decode(m, other, tokens(1, 3)), decode(m, cache, tokens(1, 3)))


@torch.no_grad()
def test_the_first_layers_can_be_left_as_they_are() -> None:
    m, row = tiny_model(), [tokens(20)]

    def keys_of_layer_1(backend: attention.Backend) -> Tensor:
        with backend.on(m) as cache:
            prefill(m, cache, row)
        return cache.layers[1].state["k"].data

    want = keys_of_layer_1(attention.Full())
    assert torch.equal(keys_of_layer_1(attention.Noise(dense_layers=1)), want)
    assert not torch.equal(keys_of_layer_1(attention.Noise()), want)


def test_it_has_no_budget_and_equals_full_attention_nowhere() -> None:
    backend = attention.Noise()
    assert backend.budget is None
    assert backend.exact_until == 0
    assert backend.keeps_all
    assert backend.rewindable
    assert backend.params() == {"noise": 0.5, "seed": 0}
