"""Full attention is transformers' own, and every method is full attention up to `exact_until`."""

from __future__ import annotations

import math

import pytest
import torch
from driving import BACKENDS, KEEP_ALL, decode, follow, left_pad, model, prefill, tokens
from oracles.models import HEADS, tiny_model

import attention


@torch.no_grad()
def own_logits(m, ids: torch.Tensor, implementation: str) -> torch.Tensor:
    """transformers' logits of whole sequences, by the named attention."""
    before = m.config._attn_implementation
    m.set_attn_implementation(implementation)
    try:
        return m(input_ids=ids, use_cache=False).logits
    finally:
        m.set_attn_implementation(before)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_full_is_transformers(family: str, heads: tuple[int, int], implementation: str) -> None:
    for dtype, tolerance in ((torch.float32, 5e-5), (torch.float64, 1e-9)):
        if dtype is torch.float64 and implementation == "eager":
            tolerance = 1e-5  # eager rounds its softmax to float32 whatever the model's dtype
        m = tiny_model(family, heads, 2, dtype)
        ids = tokens(2, 90)
        want = own_logits(m, ids, implementation)[:, 29:]
        with attention.Full().on(m) as cache:
            got = follow(m, cache, list(ids[:, :30]), ids[:, 30:])
        assert want.abs().max() > 1
        assert (got - want).abs().max() <= tolerance


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_full_generates_what_transformers_generates(family: str) -> None:
    m = model(family)
    ids, mask = left_pad([tokens(12), tokens(3, seed=1), tokens(20, seed=2)])
    for arguments in (
        {"max_new_tokens": 30},
        {"max_new_tokens": 12, "num_beams": 3},
        {"max_new_tokens": 30, "do_sample": True, "top_k": 20},
        {"max_new_tokens": 12, "prefill_chunk_size": 7},
    ):
        call = {"input_ids": ids, "attention_mask": mask, "do_sample": False, **arguments}
        torch.manual_seed(3)
        want = m.generate(**call)
        with attention.Full().on(m) as cache:
            torch.manual_seed(3)
            got = m.generate(**call, past_key_values=cache)
        assert torch.equal(got, want), arguments


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_exact_until(backend: attention.Backend) -> None:
    """Equal to full attention while at most `exact_until` tokens are seen, and not after."""
    m = model("qwen3")
    until = 60 if math.isinf(backend.exact_until) else int(backend.exact_until)
    ids = tokens(2, until + 12)
    want = own_logits(m, ids, "sdpa")
    for prompt in {1, max(until // 2, 1), max(until, 1)}:
        with backend.on(m) as cache:
            first = prefill(m, cache, list(ids[:, :prompt]))
            got = torch.cat((first[:, None], decode(m, cache, ids[:, prompt:])), dim=1)
        gap = (got - want[:, prompt - 1 :]).abs().amax((0, 2))
        exact = max(until, prompt) - prompt + 1
        assert gap[:exact].max() <= 1e-9
        if backend.name != "full":
            assert gap[exact:].max() > 1e-6


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.exact_until], ids=str)
def test_prefill_chunked_and_step_by_step_agree_until_exact_until(
    backend: attention.Backend,
) -> None:
    """And forever after: the state left behind is the same."""
    m = model()
    until = 40 if math.isinf(backend.exact_until) else int(backend.exact_until)
    texts, given = [tokens(until), tokens(until - 3, seed=1)], tokens(2, 20, seed=2)
    with backend.on(m) as cache:
        want = follow(m, cache, texts, given)
        # Some treat a prompt apart, and a token fed alone is none: no chunk of one for them.
        apart = backend.name == "raas" or not getattr(backend, "score_from_prefill", True)
        for chunk in (4,) if apart else (1, 3):
            got = follow(m, cache.new(), texts, given, chunk)
            assert (got - want).abs().max() <= 1e-9


@pytest.mark.parametrize(
    "backend", [b for b in KEEP_ALL if getattr(b, "prefill", "dense") == "dense"], ids=str
)
def test_prefill_in_chunks_agrees_always_where_all_is_kept(backend: attention.Backend) -> None:
    """Chunks of more than one token, as one is a decode step, which reads less."""
    m = model()
    texts, given = [tokens(84), tokens(80, seed=1)], tokens(2, 20, seed=2)
    with backend.on(m) as cache:
        want = follow(m, cache, texts, given)
        for chunk in (2, 17, 42):
            got = follow(m, cache.new(), texts, given, chunk)
            assert (got - want).abs().max() <= 1e-9
