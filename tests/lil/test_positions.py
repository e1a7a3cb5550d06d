"""Where a model's positions end: rows are cut there, and say so."""

from __future__ import annotations

import json

import pytest

import lil
from attention.errors import InvalidValue


@pytest.fixture
def short(qwen, monkeypatch):
    """The model with 12 positions: rope gives it more, which is what it was not made for."""
    monkeypatch.setattr(qwen.config, "max_position_embeddings", 12)
    return qwen


def test_a_row_ends_where_the_models_positions_end(short, tokenizer):
    cut, free = lil.decode(short, tokenizer, [[5, 6, 7, 8], [5, 6, 7]], max_new_tokens=8)
    assert (cut.tokens, cut.finish, cut.positions, cut.at_positions) == (8, "length", 12, True)
    assert (free.tokens, free.at_positions) == (8, False)
    (long,) = lil.decode(short, tokenizer, [[5, 6, 7, 8]], max_new_tokens=100)
    assert (long.tokens, long.finish, long.at_positions) == (8, "length", True)
    settings = {"max_new_tokens": 10, "beyond_positions": True}
    (beyond,) = lil.decode(short, tokenizer, [[5, 6, 7, 8]], **settings)
    assert (beyond.tokens, beyond.at_positions) == (10, True)
    assert beyond.new_ids[:8] == long.new_ids
    again = lil.Trace.from_dict(json.loads(json.dumps(beyond.to_dict())))
    assert again == beyond


@pytest.mark.parametrize("length", [12, 13])
def test_a_prompt_that_fills_the_positions_is_refused(short, tokenizer, length):
    with pytest.raises(InvalidValue, match=rf"prompts\[1\] = '{length} tokens'.* 12 positions"):
        lil.stream(short, tokenizer, [[5], [5] * length])
    lil.stream(short, tokenizer, [[5] * length], beyond_positions=True)
    with pytest.raises(InvalidValue, match="beyond_positions"):
        lil.stream(short, tokenizer, [[5]], beyond_positions=1)
