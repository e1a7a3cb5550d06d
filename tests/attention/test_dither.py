"""The control `dither`: full attention and noise that follows from where it is added."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from driving import Bare, decode, follow, model, prefill, tokens
from torch import Tensor

import attention
from attention.methods.controls.dither import DitherLayer
from attention.methods.controls.random import mix
from tests.attention.oracles.dither import noise


def numbers(heads: int = 4, index: int = 0, tokens: int = 400, **params: int) -> Tensor:
    """(tokens, heads, D)."""
    layer = Bare(attention.Dither(**params), heads=(heads, 2), index=index).layer
    assert isinstance(layer, DitherLayer)
    return layer.numbers(mix(torch.arange(tokens))[None])[0]


def test_numbers_are_those_of_integers_alone() -> None:
    for seed, index in ((0, 0), (7, 3), (5_000_000_000, 1)):
        got = numbers(index=index, seed=seed, tokens=9)
        for place in np.ndindex(got.shape):
            assert float(got[place]) == noise(seed, index, *place)


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
    plain, other = (Bare(b, rows=2) for b in (attention.Full(), attention.Dither(noise=size)))
    for T in (300, 1, 1):
        want, got = plain.feed(T), other.feed(T)
        ratio = (got - want).square().mean((2, 3)).sqrt() / want.square().mean((2, 3)).sqrt()
        assert abs(float(ratio.mean()) / size - 1) < 0.3 / math.sqrt(T)


@torch.no_grad()
def test_neither_batch_nor_order_nor_chunks_change_a_row() -> None:
    m, rows, later = model(), [tokens(23), tokens(9, seed=1), tokens(16, seed=2)], tokens(3, 8)
    with attention.Dither(noise=0.5).on(m) as cache:
        alone = [follow(m, cache.new(), [row], later[[r]])[0] for r, row in enumerate(rows)]
        for order in ([0, 1, 2], [2, 0, 1]):
            for chunk in (None, 5):
                some = cache.new()
                got = follow(m, some, [rows[r] for r in order], later[order], chunk)
                for place, r in enumerate(order):
                    assert (got[place] - alone[r]).abs().max() < 1e-9
    with attention.Full().on(m) as cache:
        assert (follow(m, cache, [rows[0]], later[[0]])[0] - alone[0]).abs().max() > 1e-2


@torch.no_grad()
def test_long_prompts_get_theirs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    m, row = model(), [tokens(60)]
    with attention.Dither().on(m) as cache:
        want = prefill(m, cache, row)
        monkeypatch.setattr("attention.methods.controls.dither.NUMBERS_AT_ONCE", 7)
        other = cache.new()
        assert torch.equal(prefill(m, other, row), want)
        assert torch.equal(decode(m, other, tokens(1, 3)), decode(m, cache, tokens(1, 3)))


@torch.no_grad()
def test_the_first_layers_can_be_left_as_they_are() -> None:
    m, row = model(), [tokens(20)]

    def keys_of_layer_1(backend: attention.Backend) -> Tensor:
        with backend.on(m) as cache:
            prefill(m, cache, row)
        return cache.layers[1].state["k"].data

    want = keys_of_layer_1(attention.Full())
    assert torch.equal(keys_of_layer_1(attention.Dither(dense_layers=1)), want)
    assert not torch.equal(keys_of_layer_1(attention.Dither()), want)


@pytest.mark.parametrize("wrong", [{"noise": 0}, {"noise": -1.0}, {"noise": True}, {"seed": -1}])
def test_bad_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.Dither(**wrong)


def test_it_has_no_budget_and_equals_full_attention_nowhere() -> None:
    backend = attention.Dither()
    assert backend.budget is None
    assert backend.exact_until == 0
    assert backend.keeps_all
    assert backend.rewindable
    assert backend.params() == {"noise": 0.5, "seed": 0}
