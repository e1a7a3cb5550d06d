"""Every backend and option against its naive oracle: logits of decode steps, positions exactly.

Each on every family and grouping is marked slow; `scripts/checks/check_oracles.py` prints a table
of the whole grid, every family with every grouping in either dtype, 200 steps each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import attention
from tests.attention.oracles.compare import (
    TOLERANCE,
    Case,
    decisive,
    difference,
    oracle,
    positions,
    run_oracle,
)
from tests.attention.oracles.grid import (
    further_sample,
    further_ties,
    slow_grid,
    small_sample,
)
from tests.attention.oracles.models import HEADS, VOCABULARY, tiny_model

METHODS = ("full", "sink", "h2o", "quest", "infllm")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread costs more than it gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def parameters(method: str, budget: int) -> dict[str, Any]:
    """Parameters with which the method is sparse in every layer."""
    if method == "full":
        return {}
    return {"budget": budget, **({"dense_layers": 0} if method == "quest" else {})}


def check(case: Case) -> None:
    case, _ = decisive(case)
    found = difference(case, attention.get)
    assert found.first is None, f"{case} seed {case.seed}: {found.first}"
    assert found.logits <= TOLERANCE[case.dtype], (
        f"{case} seed {case.seed}: logits differ by {found.logits:.1e} at step {found.step}"
    )


@pytest.mark.parametrize("case", [*small_sample(), *further_sample()], ids=str)
def test_backend_is_its_oracle(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_grid(), ids=str)
def test_backend_is_its_oracle_on_every_family_and_grouping(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", further_ties(), ids=str)
def test_ties_fall_as_in_the_oracle(case: Case) -> None:
    found = difference(case, attention.get)
    assert found.within(case.dtype), found


@pytest.mark.parametrize("heads", HEADS)
def test_the_h2o_cases_see_newcomers_among_the_heavy(heads: tuple[int, int]) -> None:
    """Guards the comparison itself: with a frozen heavy set it would not test the scores."""
    case = Case("llama", heads, "h2o", (("budget", 64),), sharp=2.0, prompt=5)
    run, recent = run_oracle(case), 32
    admitted = [
        case.prompt + i - recent in head
        for i in range(64, case.steps)
        for layer in run.kept[i]
        for head in layer
    ]
    assert sum(admitted) >= 10
    check(case)


def test_sink_with_absolute_positions() -> None:
    params = (("budget", 16), ("positions", "absolute"))
    check(Case("qwen2", (4, 2), "sink", params))


@pytest.mark.parametrize("method", ["h2o", "quest"])
@pytest.mark.parametrize("gqa", ["mean", "max"])
def test_other_reductions_over_the_group(method: str, gqa: str) -> None:
    params = (*parameters(method, 32).items(), ("gqa", gqa))
    check(Case("llama", (4, 1), method, params))


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_a_prompt_in_chunks(method: str) -> None:
    """T > 1 on a held cache: queries see everything held; evicting methods cut after each chunk."""
    params = parameters(method, 32)
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
