"""Budgets are met in every layer and head; what is reported is what the state holds."""

from __future__ import annotations

import pytest
from examples import FIRST

import attention
from attention.testing.driving import follow, prefill, step
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_bytes_are_those_of_keys_values_and_state(backend: attention.Backend) -> None:
    """No more than what is allocated, and at least the kept keys and values."""
    m = tiny_model()
    with backend.on(m) as cache:
        follow(m, cache, [tokens(50)], tokens(1, 20))
        allocated = sum(s.data.nbytes for layer in cache.layers for s in layer.state.values())
        D, kept = 16, int(cache.stats().kept)
        keys_and_values = (2 - backend.dense_layers) * 2 * kept * 2 * D * 8
        keys_and_values += backend.dense_layers * 2 * 70 * 2 * D * 8
        assert keys_and_values <= cache.row_stats().bytes[0] <= allocated
        bare = backend.name in ("noise", "full", "uniform", "oracle", "window")
        bare |= backend.name == "sink" and backend.positions != "cache"
        assert (cache.row_stats().bytes[0] == keys_and_values) == bare


def test_after_a_prefill_nothing_was_read() -> None:
    m = tiny_model()
    with attention.Quest(budget=32, page=8, dense_layers=1).on(m) as cache:
        prefill(m, cache, [tokens(50)])
        stats = cache.row_stats()
        assert stats.keys_read.tolist() == stats.read_max.tolist() == [0]
        assert cache.stats().read_max is None
        with pytest.raises(RuntimeError, match="decode step"):
            cache.read_positions(0)
        step(m, cache, tokens(1))
        assert stats.keys_read.tolist() == [0]  # a report does not change later
        assert cache.row_stats().keys_read.tolist() == [2 * (51 + 27 + 2 * 7)]


def test_query_heads_keep_sets_of_their_own_at_g_times_the_memory() -> None:
    m, texts, then = tiny_model("llama", (4, 1)), [tokens(30), tokens(5, seed=1)], tokens(2, 20)
    found = {}
    for gqa in ("sum", "query_head"):
        with attention.H2O(budget=10, gqa=gqa).on(m) as cache:
            follow(m, cache, texts, then)
            found[gqa] = cache.row_stats(), cache.read_positions(1), cache.kv_heads
    (one, _, heads), (own, read, same_heads) = found["sum"], found["query_head"]
    assert heads == same_heads == 2  # keys a dense step reads per token
    assert (own.bytes == 4 * one.bytes).all()
    for r in range(2):
        assert read[r].shape == (4, 10)
        assert len({tuple(head) for head in read[r].tolist()}) > 1
        assert one.keys_read[r] == 2 * 10 < own.keys_read[r] < 2 * 4 * 10
        assert own.read_max[r] == own.read_mean[r] == own.kept_max[r] + 1 == 10
