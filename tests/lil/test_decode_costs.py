"""What a trace says a row cost, and what the caller is told while it runs."""

from __future__ import annotations

import time

import pytest
from tiny_models import asked

import lil

PROMPTS = [[5, 6, 7], [9] * 12, [1, 2, 3, 4, 5, 6, 7, 8], [30]]
LAYERS, HEADS = 3, 2  # of the tiny models
TOKEN_BYTES = LAYERS * HEADS * 2 * 8 * 8  # keys and values of 8 float64 numbers


def keys_of_full(prompt: int, generated: int) -> int:
    """Every step reads every token: the step behind the first token sees prompt + 1, and so on."""
    return LAYERS * HEADS * sum(prompt + step for step in range(1, generated))


def test_full_attention_costs_what_arithmetic_says(qwen, tokenizer):
    caps = [43, 7, 60, 1]
    rows = asked(PROMPTS, max_new_tokens=caps)
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


def test_curve_is_that_of_the_output_alone(qwen, tokenizer):
    (trace,) = lil.decode(qwen, tokenizer, PROMPTS[:1], max_new_tokens=105, check_every=25)
    assert list(trace.curve) == lil.token_curve(trace.pieces, every_tokens=25)
    assert trace.pieces[0] == lil.token_bytes(tokenizer)[trace.new_ids[0]]


def test_ids_beyond_the_tokenizer_have_no_bytes(qwen, tokenizer):
    """Embeddings padded beyond the last token can be sampled; they decode to nothing."""
    (trace,) = lil.decode(
        qwen, tokenizer, [[59, 58]], max_new_tokens=200, temperature=3.0, check_every=200
    )
    beyond = [i for i, token in enumerate(trace.new_ids) if token >= len(tokenizer)]
    assert beyond
    assert all(trace.pieces[i] == b"" for i in beyond)
    assert trace.text == tokenizer.decode(trace.new_ids)


def test_seconds_of_all_rows_add_up_to_less_than_the_wall(qwen, tokenizer):
    started = time.perf_counter()
    traces = lil.decode(
        qwen, tokenizer, asked(PROMPTS, max_new_tokens=[60, 20, 60, 40]), batch_size=3
    )
    wall = time.perf_counter() - started
    total = sum(trace.decode_sec + trace.prefill_sec for trace in traces)
    assert 0.3 * wall < total < wall
    for trace in traces:
        seconds = [check.seconds for check in trace.checks]
        assert seconds == sorted(seconds)


def test_a_slow_consumer_is_not_charged_to_the_rows(qwen, tokenizer, monkeypatch):
    class Clock:
        """A second passes at every look, and a thousand while the caller works."""

        now = 0.0

        def perf_counter(self) -> float:
            self.now += 1
            return self.now

    clock, total = Clock(), 0.0
    monkeypatch.setattr(lil.decoding.loop, "time", clock)
    for _, trace in lil.stream(
        qwen, tokenizer, asked(PROMPTS, max_new_tokens=[3, 5, 7, 9]), batch_size=2
    ):
        clock.now += 1000
        total += trace.decode_sec + trace.prefill_sec
    assert 0 < total < 100


def test_text_prompts_are_tokenized_and_traces_come_back_in_order(qwen, tokenizer):
    texts = [".", "\n\n", "<eos>"]  # without a pre-tokenizer each is one token
    steps: list[int] = []
    traces = lil.decode(
        qwen,
        tokenizer,
        asked(texts, max_new_tokens=[9, 2, 4]),
        batch_size=3,
        on_step=steps.append,
    )
    assert [trace.prompt_ids for trace in traces] == [(5,), (6,), (0,)]
    assert [trace.prompt_bytes for trace in traces] == [text.encode() for text in texts]
    assert [trace.tokens for trace in traces] == [9, 2, 4]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (3, 15)


def test_stream_gives_rows_as_they_end_and_closing_it_restores_the_model(qwen, tokenizer):
    before = qwen.config._attn_implementation
    rows = lil.stream(qwen, tokenizer, asked(PROMPTS, max_new_tokens=[9, 2, 9, 9]), batch_size=2)
    assert next(rows)[0] == 1
    assert qwen.config._attn_implementation != before
    rows.close()
    assert qwen.config._attn_implementation == before


def test_no_prompts_give_no_traces(qwen, tokenizer):
    assert lil.decode(qwen, tokenizer, []) == []
