"""Every backend and option against its naive oracle: logits of decode steps, positions exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attention
from tests.attention.oracles.compare import TOLERANCE, Case, decisive, difference, oracle, positions
from tests.attention.oracles.grid import quick_cases, slow_cases, tied_cases
from tests.attention.oracles.models import VOCABULARY, tiny_model


def check(case: Case) -> None:
    result = difference(case, attention.get)
    assert result.first is None, f"{case} seed {case.seed}: {result.first}"
    assert result.logits <= TOLERANCE[case.dtype], f"{case} seed {case.seed}: step {result.step}"


@pytest.mark.parametrize("case", quick_cases(), ids=str)
def test_a_backend_is_its_oracle(case: Case) -> None:
    check(decisive(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(), ids=str)
def test_a_backend_is_its_oracle_on_every_family_and_grouping(case: Case) -> None:
    check(decisive(case))


@pytest.mark.parametrize("case", tied_cases(), ids=str)
def test_ties_fall_as_in_the_oracle(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("full", {}),
        ("sink", {"budget": 32}),
        ("h2o", {"budget": 32}),
        ("quest", {"budget": 32, "dense_layers": 0}),
        ("infllm", {"budget": 32}),
    ],
)
@torch.no_grad()
def test_a_prompt_in_chunks(method: str, params: dict[str, Any]) -> None:
    """T > 1 on a held cache: queries see everything held; evicting methods cut after each chunk."""
    model = tiny_model("qwen3", (4, 2), 2, torch.float64)
    lengths = (20, 33, 2, *(1,) * 30)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, sum(lengths)).tolist()
    naive = oracle(model, method, params, torch.float64)
    seen = 0
    with attention.get(method, **params).on(model) as cache:
        for T in lengths:
            chunk = tokens[seen : seen + T]
            out = model(
                input_ids=torch.tensor([chunk]),
                position_ids=torch.arange(seen, seen + T)[None],
                past_key_values=cache,
            )
            gap = np.abs(out.logits[0].numpy() - naive.forward(chunk)).max()
            assert gap <= 1e-9, f"{T} tokens after {seen}: {gap:.1e}"
            for layer in range(2):
                assert positions(cache.kept_positions(layer), 0) == naive.layers[layer].kept()
            seen += T
