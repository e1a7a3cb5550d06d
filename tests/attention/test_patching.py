"""How a model is patched and restored, and what is refused before it computes anything wrong."""

from __future__ import annotations

import pytest
import torch
from examples import FIRST
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
)

import attention
from attention.patching.cache import ATTENTION
from attention.testing.driving import follow, left_padded, prefill, step
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_config, tiny_model


@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_the_model_is_restored_whatever_happens(before: str) -> None:
    m = tiny_model()
    was = m.config._attn_implementation
    m.set_attn_implementation(before)
    try:
        with attention.Full().on(m):
            assert m.config._attn_implementation == ATTENTION
            with attention.Sink(budget=8).on(m):
                pass
            assert m.config._attn_implementation == ATTENTION
        assert m.config._attn_implementation == before
        with pytest.raises(ZeroDivisionError), attention.Sink(budget=8).on(m):
            raise ZeroDivisionError
        assert m.config._attn_implementation == before
        with torch.no_grad():
            m(input_ids=tokens(1, 5))
    finally:
        m.set_attn_implementation(was)


def test_a_cache_ends_with_its_block() -> None:
    m = tiny_model()
    with attention.Full().on(m) as cache:
        prefill(m, cache, [tokens(5)])
    with pytest.raises(attention.InvalidValue, match="closed full block"):
        step(m, cache, tokens(1))
    with (
        attention.Full().on(m),
        pytest.raises(attention.InvalidValue, match="closed full block"),
    ):
        step(m, cache, tokens(1))


@torch.no_grad()
def test_calls_around_the_cache_are_refused() -> None:
    m, ids = tiny_model(), tokens(1, 5)
    with attention.Full().on(m):
        for call in ({}, {"use_cache": False}, {"past_key_values": DynamicCache()}):
            with pytest.raises(attention.InvalidValue, match="past_key_values"):
                m(input_ids=ids, **call)


def test_gradients_and_dropout_are_refused() -> None:
    config = tiny_config("llama", (4, 2), 2)
    config.attention_dropout = 0.1
    m = AutoModelForCausalLM.from_config(config)
    ids = tokens(1, 5)
    with attention.Full().on(m) as cache:
        with pytest.raises(attention.InvalidValue, match="no_grad"):
            m.eval()(input_ids=ids, past_key_values=cache)
        with pytest.raises(attention.InvalidValue, match="dropout"), torch.no_grad():
            m.train()(input_ids=ids, past_key_values=cache.new())


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_inference_mode_may_come_and_go(backend: attention.Backend) -> None:
    m, text, answers = tiny_model(), [tokens(20), tokens(6, seed=1)], tokens(2, 12)
    with backend.on(m) as cache:
        want = follow(m, cache.new(), text, answers)[:, 1:]
        with torch.inference_mode():
            prefill(m, cache, text)
            got = [step(m, cache, answers[:, 0])]
        got += [step(m, cache, column) for column in answers[:, 1:6].T]
        with torch.inference_mode():
            cache.select_rows([0, 1])
            got += [step(m, cache, column) for column in answers[:, 6:9].T]
        got += [step(m, cache, column) for column in answers[:, 9:].T]
    assert torch.equal(torch.stack(got, 1), want)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([[1, 1, 1, 0, 0]], "left padding"),
        ([[1, 0, 1, 1, 1]], "left padding"),
        ([[1, 1, 1]], "shape"),
        ([[[[0.0]]]], "shape"),
    ],
)
def test_other_masks_are_refused_and_leave_the_cache_as_it_was(mask: list, says: str) -> None:
    m, ids = tiny_model(), tokens(1, 5)
    with attention.Full().on(m) as cache, torch.no_grad():
        want = m(input_ids=ids, past_key_values=cache.new()).logits
        with pytest.raises(attention.InvalidValue, match=says):
            m(input_ids=ids, attention_mask=torch.tensor(mask), past_key_values=cache)
        assert torch.equal(m(input_ids=ids, past_key_values=cache).logits, want)
        # Padding cannot come after real tokens.
        with pytest.raises(attention.InvalidValue, match="left padding"):
            m(
                input_ids=ids,
                attention_mask=torch.tensor([[1] * 5 + [0] + [1] * 4]),
                past_key_values=cache,
            )


@torch.no_grad()
def test_wrong_positions_are_refused() -> None:
    m = tiny_model()
    ids, mask = left_padded([tokens(5), tokens(3, seed=1)])
    with attention.Sink(budget=8).on(m) as cache:
        with pytest.raises(attention.InvalidValue, match="row 1, column 2"):
            m(input_ids=ids, attention_mask=mask, past_key_values=cache)
        prefill(m, cache, [tokens(5), tokens(3, seed=1)])
        with pytest.raises(attention.InvalidValue, match="expected 3 in row 1"):
            m(input_ids=ids[:, :1], past_key_values=cache)
        assert step(m, cache, ids[:, 0]).isfinite().all()
        with pytest.raises(attention.InvalidValue, match="2 rows"):
            m(input_ids=ids[:1, :1], past_key_values=cache)


def scaled(kind: str) -> torch.nn.Module:
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("llama3", "longrope", "yarn"):
        rope["original_max_position_embeddings"] = 32
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = LlamaConfig(
        vocab_size=53, hidden_size=64, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        rope_parameters=rope,
    )  # fmt: skip
    torch.manual_seed(0)
    m = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for p in m.parameters():
            p.normal_(0, 0.15)
    return m


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_change_are_refused_where_keys_are_turned(kind: str) -> None:
    m = scaled(kind)
    rope, like = m.model.rotary_emb, torch.zeros(1, 1, 64, dtype=torch.float64)
    first = rope(like, torch.arange(4)[None])[0]
    rope(like, torch.arange(400)[None])
    if not torch.equal(rope(like, torch.arange(4)[None])[0], first):
        # Older releases keep a longer text's frequencies: the model is refused as a whole.
        with pytest.raises(attention.InvalidValue, match="by itself"), attention.Full().on(m):
            pass
        return
    for backend in (attention.Sink(budget=8), attention.InfLLM(budget=16)):
        with pytest.raises(attention.InvalidValue, match=kind), backend.on(m):
            pass
    for backend in (
        attention.Sink(budget=8, positions="absolute"),
        attention.Sink(budget=8, sinks=0),
        attention.H2O(budget=8),
    ):
        with backend.on(m) as cache:
            follow(m, cache, [tokens(10)], tokens(1, 4))


@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear"])
def test_the_scaling_of_the_model_is_honoured(kind: str) -> None:
    """A window as long as the text is exact; one slot less and the sinks are turned by one."""
    m, ids = scaled(kind), tokens(1, 40)
    with torch.no_grad():
        want = m(input_ids=ids, use_cache=False).logits[0]
    for backend in (attention.Sink(budget=40), attention.InfLLM(budget=128, n_local=40)):
        with backend.on(m) as cache:
            got = follow(m, cache, [ids[0, :10]], ids[:, 10:])[0]
        assert (got - want[9:]).abs().max() < 1e-9
    with attention.Sink(budget=39).on(m) as cache:
        follow(m, cache, [ids[0, :10]], ids[:, 10:])
        layer = cache.layers[0].state
        first, copied = layer["first"].data[:, :, :4], layer["k"].data[:, :, :4]
        size = (copied.norm(dim=-1) / first.norm(dim=-1) - 1).abs().max()
        assert size < 1e-6  # a turn, so the attention factor of yarn is not applied twice
        assert (copied - first).abs().max() > 1e-3


@torch.no_grad()
def test_a_mask_that_hides_tokens_seen_is_refused() -> None:
    """In a step and in a chunk; padding is none, nor are ones for a row that is shorter."""
    m, text = tiny_model(), [tokens(20), tokens(6, seed=1)]
    _, mask = left_padded(text)
    with attention.Full().on(m) as cache:
        prefill(m, cache, text)
        for T in (1, 3):
            ids, wider = tokens(2, T), torch.cat((mask, torch.ones(2, T, dtype=torch.long)), dim=1)
            for r, hidden in ((0, slice(5, 9)), (0, slice(0, 1)), (1, slice(14, 15))):
                wrong = wider.clone()
                wrong[r, hidden] = 0
                with pytest.raises(attention.InvalidValue, match="where tokens were seen"):
                    m(input_ids=ids, attention_mask=wrong, past_key_values=cache)
            call = {"input_ids": ids, "position_ids": cache.seen[:, None] + torch.arange(T)}
            want = m(**call, past_key_values=cache.clone()).logits
            for right in (wider, torch.ones_like(wider)):
                got = m(**call, attention_mask=right, past_key_values=cache.clone()).logits
                assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_half_precision_follows_float32(backend: attention.Backend, dtype: torch.dtype) -> None:
    text, answers = [tokens(12), tokens(5, seed=1)], tokens(2, 3)
    exact = tiny_model("llama", (4, 2), 2, torch.float32)
    half = tiny_model("llama", (4, 2), 2, dtype)
    with backend.on(exact) as cache:
        want = follow(exact, cache, text, answers)
    with backend.on(half) as cache:
        got = follow(half, cache, text, answers)
        assert cache.layers[1].state[next(iter(cache.layers[1].state))].data.dtype is dtype
    assert got.dtype is dtype
    # InfLLM may choose another block; the others read nearly everything here.
    assert (got.float() - want).abs().median() < 0.05 * want.abs().max()
