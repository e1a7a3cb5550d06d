"""Rows that go on under full attention: their tokens, their costs, and their room."""

from __future__ import annotations

import pytest
from acting_rows import backend, fires, run

import attention
from tests.sampling import some_slow


@pytest.mark.parametrize("name", some_slow(["quest", "infllm", "full"], 1))
def test_densify_before_anything_is_sparse_is_full_attention(qwen, tokenizer, name):
    """Below the budget the keys are full attention's, so from there on all tokens are."""
    # InfLLM moves positions from its window on, so this one's holds the prompt and eight tokens.
    larger = attention.get("infllm", budget=40, n_init=2, block=4, n_local=24, topk=2)
    options = {"backend": larger if name == "infllm" else backend(name), "batch_size": 2}
    full = run(qwen, tokenizer)
    dense = run(qwen, tokenizer, [fires(8, "densify")], **options)
    sparse = run(qwen, tokenizer, **options)
    if name != "full":
        assert any(a.new_ids != b.new_ids for a, b in zip(full, sparse, strict=True))
    for trace, expected in zip(dense, full, strict=True):
        assert trace.new_ids == expected.new_ids
        assert trace.finish == "length"
        n = len(expected.prompt_ids)
        assert trace.keys_read_max == n + 69
        if name == "quest":  # its dense layer read everything before, and every layer does now
            assert trace.dense_layer_keys_read_mean == sum(range(n + 1, n + 70)) / 69
        assert trace.action is not None
        assert trace.action["name"] == "densify"


def test_densify_reads_every_key_from_then_on(qwen, tokenizer):
    plain = run(qwen, tokenizer, backend=backend("infllm"))
    dense = run(qwen, tokenizer, [fires(40, "densify")], backend=backend("infllm"))
    for trace, before in zip(dense, plain, strict=True):
        n = len(trace.prompt_ids)
        assert trace.new_ids[:40] == before.new_ids[:40]
        added = trace.checks[-1].keys_read - trace.cost_at(40).keys_read
        assert added == sum(range(n + 40, n + 70)) * 3 * 2
        assert trace.tokens == 70
        seconds = [check.seconds for check in trace.checks]
        assert seconds == sorted(seconds)
        assert seconds[0] > 0
