"""Random: a sample that nothing but seed, layer, head and position decides."""

from __future__ import annotations

import pytest
import torch
from driving import Bare
from hypothesis import given, settings
from hypothesis import strategies as st

import attention
from attention.methods.controls.random import WORD, mix


@settings(max_examples=20, deadline=None)
@given(
    sinks=st.integers(0, 3),
    recent=st.integers(1, 4),
    middle=st.integers(0, 4),
    prompt=st.integers(1, 30),
    steps=st.integers(1, 30),
)
def test_first_and_newest_stay_and_the_budget_is_met(
    sinks: int, recent: int, middle: int, prompt: int, steps: int
) -> None:
    budget = max(sinks + recent + middle, 2)
    bare = Bare(attention.Random(budget=budget, sinks=sinks, recent=recent))
    bare.feed(prompt)
    for _ in range(steps):
        before = bare.kept()
        bare.feed()
        n = bare.n
        for old, kept in zip(before, bare.kept(), strict=True):
            assert len(kept) == min(n, budget - 1)
            assert {*range(min(sinks, n)), *range(max(n - recent + 1, 0), n)} <= set(kept)
            assert set(kept) <= {*old, n - 1}


def test_the_sample_is_a_function_of_the_length() -> None:
    """Neither chunks nor the text nor other rows change it; seed, layer and head do."""
    backend = attention.Random(budget=12, sinks=1, recent=3)
    whole, chunked, rows = Bare(backend), Bare(backend), Bare(backend, rows=3)
    for T in (1, 40, 1, 9, 1, 1):
        chunked.feed(T)
    whole.feed(53)
    rows.feed(50)
    for _ in range(3):
        rows.feed()
    assert whole.kept() == chunked.kept() == rows.kept(1) == rows.kept(2)
    assert whole.kept()[0] != whole.kept()[1]
    other_layer = Bare(backend, index=1)
    other_seed = Bare(attention.Random(budget=12, sinks=1, recent=3, seed=1))
    for other in (other_layer, other_seed):
        other.feed(53)
        assert other.kept() != whole.kept()


def test_every_token_between_is_as_likely() -> None:
    """Half of 40 tokens over 300 seeds and 2 heads: 300 times each, sigma 12."""
    counts = torch.zeros(40)
    for seed in range(300):
        bare = Bare(attention.Random(budget=25, sinks=2, recent=3, seed=seed))
        bare.feed(44)
        for kept in bare.kept():
            counts[torch.tensor(kept[2:-2]) - 2] += 1
    assert counts.sum() == 300 * 2 * 20
    assert (counts - 300).abs().max() < 5 * 12.3
    assert 4 < counts.std() < 25


def test_numbers_do_not_collide() -> None:
    assert len(mix(torch.arange(100_000)).unique()) == 100_000
    assert 0 <= mix(torch.tensor([WORD])) <= WORD


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 4},
        {"budget": 9, "recent": 6},
        {"budget": 9, "recent": 0},
        {"budget": 9, "sinks": -1},
        {"budget": 9, "seed": -1},
        {"budget": 1, "sinks": 0},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.Random(**arguments)


def test_recent_is_half_of_the_rest_by_default() -> None:
    assert attention.Random(budget=64).params()["recent"] == 30
    assert attention.Random(budget=5).params()["recent"] == 1
