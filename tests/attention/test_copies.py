"""Copying a cache, and what becomes of it when its model is moved or converted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from states import half_a_forward
from zoo import FAMILIES, animal, build, config

import attention
from attention.testing.driving import decode, follow, left_padded, prefill, step
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

LENGTHS = (3, 27, 16)


def prompts(seed: int = 1) -> list[torch.Tensor]:
    return [tokens(n, seed=seed + i) for i, n in enumerate(LENGTHS)]


@torch.no_grad()
def prefill_more(m: Any, cache: Any) -> None:
    more = tokens(len(cache.seen), 4, seed=5)
    positions = cache.seen[:, None] + torch.arange(4)
    m(input_ids=more, position_ids=positions, past_key_values=cache)


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "qwen2_sliding"])
def test_a_copy_holds_sliding_layers_too_and_shares_the_models_tensors(family: str) -> None:
    m, given = animal(family), tokens(2, 12, seed=3)
    with attention.H2O(budget=9).on(m) as cache:
        texts = [tokens(11), tokens(2, seed=1)]
        follow(m, cache, texts, given[:, :3])
        twin = copy.copy(cache)
        ahead = decode(m, twin, given[:, 3:])
        assert torch.equal(ahead, decode(m, cache, given[:, 3:]))
        for ours, theirs in zip(cache.layers, twin.layers, strict=True):
            assert ours.geometry is theirs.geometry  # rotary table and sinks are the model's
            for name, slots in ours.state.items():
                assert slots.data.data_ptr() != theirs.state[name].data.data_ptr()
        assert (family == "gpt_oss") == (cache.layers[0].geometry.sink_logits is not None)


@torch.no_grad()
def test_a_prompt_is_read_once_and_used_many_times() -> None:
    """transformers' recipe: a deep copy of the prompt's cache for each continuation."""
    m, prefix = tiny_model(), tokens(1, 14)
    with attention.H2O(budget=32).on(m) as cache:
        m(input_ids=prefix, past_key_values=cache)
        for seed in range(2):
            ids = torch.cat((prefix, tokens(1, 5, seed=seed)), dim=1)
            call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False}
            want = m.generate(**call, past_key_values=cache.new(), max_new_tokens=10)
            used = copy.deepcopy(cache)
            assert torch.equal(m.generate(**call, past_key_values=used, max_new_tokens=10), want)
            assert used.seen.tolist() == [14 + 5 + 9]
        assert cache.seen.tolist() == [14]


def test_copies_of_nothing_of_half_a_forward_and_of_a_closed_block() -> None:
    m = tiny_model()
    with attention.Sink(budget=9).on(m) as cache:
        empty = cache.clone()
        prefill(m, cache, [tokens(4)])
        assert not empty.is_initialized
        assert torch.equal(prefill(m, empty, [tokens(4)]), prefill(m, cache.new(), [tokens(4)]))
        broken = cache.clone()
        with half_a_forward(m), pytest.raises(ZeroDivisionError):
            step(m, broken, tokens(1))
        with pytest.raises(RuntimeError, match="half way"):
            broken.clone()
    with pytest.raises(attention.InvalidValue, match="closed sink block"):
        step(m, cache.clone(), tokens(1))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
def test_a_converted_model_is_refused_with_the_old_cache(family: str) -> None:
    m = build(config(family), torch.float32)
    with attention.H2O(budget=9).on(m) as cache:
        prefill(m, cache, [tokens(12)])
        seen = cache.seen.tolist()
        m.to(torch.bfloat16)
        says = r"bfloat16.*float32.*cache\.new"
        with pytest.raises(attention.InvalidValue, match=says):
            step(m, cache.clone(), tokens(1))
        with pytest.raises(attention.InvalidValue, match=says):
            prefill_more(m, cache.clone())
        assert step(m, prefilled(m, cache.new()), tokens(1)).isfinite().all()
        m.to(torch.float32)
        assert cache.seen.tolist() == seen
        step(m, cache, tokens(1))


def prefilled(m: Any, cache: Any) -> Any:
    prefill(m, cache, [tokens(12)])
    return cache


def test_a_moved_model_is_refused_with_the_old_cache() -> None:
    m = build(config("llama"), torch.float32)
    with attention.H2O(budget=9).on(m) as cache:
        prefill(m, cache, [tokens(12)])
        q, k = torch.zeros(1, 4, 1, 8, device="meta"), torch.zeros(1, 2, 1, 8, device="meta")
        k, v = cache.update(k, k.clone(), 0)
        with pytest.raises(attention.InvalidValue, match=r"on meta.*on cpu"):
            cache.attend(0, q, k, v, None, 1.0, None)


def test_autocast_is_refused() -> None:
    m = build(config("llama"), torch.float32)
    with (
        attention.Full().on(m) as cache,
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(attention.InvalidValue, match="autocast"),
    ):
        prefill(m, cache, [tokens(5)])


@pytest.mark.parametrize(
    "move", [lambda c: c.to("cpu"), lambda c: c.to(torch.bfloat16), lambda c: c.to(device="cuda")]
)
def test_a_cache_itself_is_not_moved(move: Callable[[Any], Any]) -> None:
    m = tiny_model()
    with attention.Full().on(m) as cache:
        prefill(m, cache, [tokens(5)])
        with pytest.raises(attention.InvalidValue, match=r"cache\.new"):
            move(cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_full_attention_of_half_precision_models_follows_float32(
    family: str, dtype: torch.dtype
) -> None:
    texts, given = [tokens(12), tokens(4, seed=1)], tokens(2, 4)
    results = []
    for kind in (torch.float32, dtype):
        m = animal(family, kind)
        with attention.Full().on(m) as cache:
            results.append(follow(m, cache, texts, given))
            assert all(s.data.dtype is kind for x in cache.layers for s in x.state.values())
    want, got = results
    assert got.dtype is dtype
    assert (got.float() - want).abs().median() < 0.02 * want.abs().max()


def test_left_padding_of_a_copy_is_forgotten_like_the_originals() -> None:
    m = tiny_model()
    ids, mask = left_padded([tokens(6), tokens(2, seed=1)])
    with attention.Full().on(m) as cache, torch.no_grad():
        m(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
        )
        assert torch.equal(step(m, cache.clone(), ids[:, 0]), step(m, cache, ids[:, 0]))
