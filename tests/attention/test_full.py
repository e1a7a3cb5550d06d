"""Full attention is transformers' own, and every method is full attention up to `exact_until`."""

from __future__ import annotations

import pytest
import torch
from driving import follow, left_pad, model, tokens

import attention
from tests.attention.oracles.models import HEADS, tiny_model


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
@pytest.mark.parametrize(
    ("family", "heads"), list(zip(("llama", "qwen2", "qwen3"), HEADS, strict=True))
)
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
