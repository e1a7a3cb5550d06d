"""The sampler against temperature, top-k, top-p and the inverse CDF written out in plain Python."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil.decoding.sampling import Sampler


def oracle(scores: list[float], temperature: float, top_k: int | None, top_p: float, u: float):
    """The token, walking ids upwards until their probabilities exceed u."""
    peak = max(scores)
    weights = [math.exp((score - peak) / temperature) for score in scores]
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    likeliest = order[:top_k]
    mass = math.fsum(weights[i] for i in likeliest)
    nucleus, before = [], 0.0
    for i in likeliest:
        if before / mass >= top_p:
            break
        nucleus.append(i)
        before += weights[i]
    total = math.fsum(weights[i] for i in nucleus)
    reached = 0.0
    for i in sorted(nucleus):
        reached += weights[i] / total
        if u < reached:
            return i
    return max(nucleus)


@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(1, 40),
    temperature=st.sampled_from([0.2, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([None, 1, 2, 5, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_same_token_as_the_definition(seed, vocabulary, temperature, top_k, top_p):
    rng = random.Random(seed)
    rows = [[rng.gauss(0, 2) for _ in range(vocabulary)] for _ in range(3)]
    uniforms = [rng.random() for _ in rows]
    sampler = Sampler(temperature, top_k, top_p)
    tokens = sampler(torch.tensor(rows, dtype=torch.float64), uniforms).tolist()
    expected = [
        oracle(row, temperature, top_k, top_p, u) for row, u in zip(rows, uniforms, strict=True)
    ]
    assert tokens == expected


def test_ties_go_to_the_lower_id():
    scores = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0]])
    assert Sampler()(scores, []).tolist() == [1]
    top_two = Sampler(1.0, top_k=2)
    drawn = {top_two(scores, [u])[0].item() for u in (0.0, 0.4, 0.6, 0.999999)}
    assert drawn == {1, 2}


def test_the_edges_of_the_uniform_never_leave_the_support():
    scores = torch.tensor([[-math.inf, 0.3, -math.inf, 0.1, -math.inf]])
    below_one = 1 - 2**-53
    assert Sampler(1.0)(scores, [0.0]).tolist() == [1]
    assert Sampler(1.0)(scores, [below_one]).tolist() == [3]
    for seed in range(200):
        random_scores = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed))
        masked = random_scores.masked_fill(torch.arange(50) >= 30, -math.inf)
        assert Sampler(1.0)(masked, [below_one]).item() < 30


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, "temperature = -0.1"),
        ({"temperature": math.nan}, "temperature = nan"),
        ({"top_k": 0}, "top_k = 0"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"top_p": 1.5}, "top_p = 1.5"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(InvalidValue, match=message):
        Sampler(**values)
