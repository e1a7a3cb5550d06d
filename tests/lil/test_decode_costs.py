"""What a trace says a row cost, and what the caller learns while it runs."""

from __future__ import annotations

import pytest
from tiny_models import PROMPTS, requests_of

import lil

LAYERS, HEADS = 3, 2  # of the tiny models
TOKEN_BYTES = LAYERS * HEADS * 2 * 8 * 8  # keys and values of 8 float64 numbers


def keys_of_full(prompt: int, generated: int) -> int:
    """Every step reads every token: the step behind the first token sees prompt + 1, and so on."""
    return LAYERS * HEADS * sum(prompt + step for step in range(1, generated))


def test_full_attention_costs_what_arithmetic_says(qwen, tokenizer):
    caps = [43, 7, 60, 1]
    rows = requests_of(PROMPTS, max_new_tokens=caps)
    traces = lil.decode(qwen, tokenizer, rows, batch_size=2, check_every=20)
    for prompt, cap, trace in zip(PROMPTS, caps, traces, strict=True):
        P = len(prompt)
        ends = [*range(20, cap, 20), cap]
        assert [c.tokens for c in trace.checks] == ends
        assert [c.keys_read for c in trace.checks] == [keys_of_full(P, n) for n in ends]
        assert [c.cache_bytes for c in trace.checks] == [(P + n - 1) * TOKEN_BYTES for n in ends]
        sums = [keys_of_full(P, n) / keys_of_full(P, 2) * (P + 1) for n in ends]
        assert [c.read_sum for c in trace.checks] == pytest.approx(sums)
        assert [c.dense_read_sum for c in trace.checks] == [None] * len(ends)
        assert trace.keys_kept_max == P + cap - 1
        assert trace.cache_bytes_peak == (P + cap - 1) * TOKEN_BYTES
        assert trace.dense_layer_keys_read_mean is None
        assert [n for n, _, _ in trace.curve] == ends
        if cap == 1:
            assert (trace.keys_read_max, trace.keys_read_mean) == (None, None)
            assert trace.decode_sec == 0
        else:
            assert trace.keys_read_max == P + cap - 1
            assert trace.keys_read_mean == pytest.approx(P + cap / 2)
            assert trace.decode_sec == trace.checks[-1].seconds > 0
        assert trace.prefill_sec > 0


def test_stream_gives_rows_as_they_end_and_closing_it_restores_the_model(qwen, tokenizer):
    before = qwen.config._attn_implementation
    rows = lil.stream(
        qwen, tokenizer, requests_of(PROMPTS, max_new_tokens=[9, 2, 9, 9]), batch_size=2
    )
    assert next(rows)[0] == 1
    assert qwen.config._attn_implementation != before
    rows.close()
    assert qwen.config._attn_implementation == before
