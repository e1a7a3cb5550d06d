"""Where a model's positions end: rows are cut there, and say so."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from transformers import Qwen2Config

import lil
from attention.errors import InvalidValue
from lil.decoding.options import positions_of


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
    asked = {"max_new_tokens": 10, "beyond_positions": True}
    (beyond,) = lil.decode(short, tokenizer, [[5, 6, 7, 8]], **asked)
    assert (beyond.tokens, beyond.at_positions) == (10, True)
    assert beyond.new_ids[:8] == long.new_ids
    again = lil.Trace.from_dict(json.loads(json.dumps(beyond.to_dict())))
    assert again == beyond


def test_an_end_at_the_last_position_is_no_cut(short, tokenizer, eos):
    (free,) = lil.decode(short, tokenizer, [[5, 6, 7, 8]])
    eos(free.new_ids[-1])
    (ended,) = lil.decode(short, tokenizer, [[5, 6, 7, 8]])
    assert ended.finish == "eos"
    assert not ended.at_positions


@pytest.mark.parametrize("length", [12, 13])
def test_a_prompt_that_fills_the_positions_is_refused(short, tokenizer, length):
    with pytest.raises(InvalidValue, match=rf"prompts\[1\] = '{length} tokens'.* 12 positions"):
        lil.stream(short, tokenizer, [[5], [5] * length])
    lil.stream(short, tokenizer, [[5] * length], beyond_positions=True)
    with pytest.raises(InvalidValue, match="beyond_positions"):
        lil.stream(short, tokenizer, [[5]], beyond_positions=1)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({}, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}, 4096),
        ({"rope_type": "linear", "factor": 8.0}, 4096),
    ],
)
def test_positions_are_what_the_config_says(rope, expected):
    config = Qwen2Config(max_position_embeddings=4096)
    config.rope_parameters = {"rope_theta": 1e4, **rope}
    assert positions_of(config) == expected
    unbounded = SimpleNamespace(get_text_config=lambda: SimpleNamespace())
    assert positions_of(unbounded) is None
