"""Blocks on one model, in any order and in threads: right or refused, and the model is restored."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import attention
from attention.patching.cache import ATTENTION, AttentionCache
from attention.testing.driving import follow, prefill
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

CALL = {"max_new_tokens": 15, "do_sample": False}
KINDS = (
    attention.Full(),
    attention.H2O(budget=12),
    attention.Quest(budget=16, page=4, dense_layers=0),
    attention.Sink(budget=9),
)


def generated(m: Any, cache: AttentionCache | None = None) -> Tensor:
    ids = tokens(1, 20)
    result: Tensor = m.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **CALL
    )
    return result


@pytest.fixture
def own() -> Any:
    """A model that no other test has, and its own attention."""
    m = copy.deepcopy(tiny_model())
    m.set_attn_implementation("eager")
    return m


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_blocks_may_be_left_in_any_order(own: Any, order: tuple[int, ...]) -> None:
    want = []
    for backend in KINDS[:3]:
        with backend.on(own) as cache:
            want.append(generated(own, cache))
    plain = generated(own)
    blocks = [backend.on(own) for backend in KINDS[:3]]
    caches = [block.__enter__() for block in blocks]
    for left, at in enumerate(order):
        for i in order[left:]:
            assert torch.equal(generated(own, caches[i].new()), want[i])
        assert own.config._attn_implementation == ATTENTION
        blocks[at].__exit__(None, None, None)
        with pytest.raises(attention.InvalidValue, match=f"closed {KINDS[at].name} block"):
            generated(own, caches[at])
    assert own.config._attn_implementation == "eager"
    assert not own._forward_pre_hooks
    assert torch.equal(generated(own), plain)


def test_threads_over_one_model_do_not_meet(own: Any) -> None:
    want = []
    for backend in KINDS:
        with backend.on(own) as cache:
            want.append(generated(own, cache))

    def run(i: int) -> Tensor:
        with KINDS[i].on(own) as cache:
            return generated(own, cache)

    with ThreadPoolExecutor(len(KINDS)) as pool:
        jobs = [i for _ in range(3) for i in range(len(KINDS))]
        for i, got in zip(jobs, pool.map(run, jobs), strict=True):
            assert torch.equal(got, want[i])
    assert own.config._attn_implementation == "eager"


@torch.no_grad()
def test_a_cache_is_refused_by_any_other_model(own: Any) -> None:
    """One that attends by itself would see the newest token alone."""
    other, text = tiny_model("qwen3"), [tokens(12)]
    with attention.H2O(budget=9).on(own) as cache:
        with pytest.raises(attention.InvalidValue, match="h2o block on another model"):
            prefill(other, cache, text)
        with (
            attention.Full().on(other),
            pytest.raises(attention.InvalidValue, match="h2o block on another model"),
        ):
            prefill(other, cache.new(), text)
        # Nothing came of it.
        answers = tokens(1, 8)
        got = follow(own, cache, text, answers)
        assert torch.equal(got, follow(own, cache.new(), text, answers))
