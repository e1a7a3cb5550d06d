"""Penalties by name, and what they refuse."""

from __future__ import annotations

import math

import pytest
from transformers import LogitsProcessor

from attention.errors import InvalidValue
from lil import LZPenalty, penalties


def test_penalties_by_name():
    wanted = ["dry", "frequency", "lz", "no_repeat_ngram", "nowait", "presence"]
    assert penalties.names() == [*wanted, "presence_window", "repetition"]
    assert penalties.get("lz", alpha=0.2) == LZPenalty(alpha=0.2)
    for entry in penalties.known():
        name, penalty = entry.name, penalties.get(entry.name)
        assert isinstance(penalty, penalties.Penalty)
        assert isinstance(penalty, LogitsProcessor)
        assert penalties.get(name, **penalty.params()) == penalty
        assert entry.line.endswith(").")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lzz", {}, "did you mean 'lz'"),
        ("lz", {"alfa": 1}, "did you mean 'alpha'"),
        ("lz", {"alpha": -1}, "alpha = -1"),
        ("lz", {"window": 0}, "window = 0"),
        ("lz", {"formula": "rates"}, "did you mean 'rate'"),
        ("lz", {"formula": "rate", "window": 32}, "window = 32"),
        ("repetition", {"penalty": 0}, "penalty = 0"),
        ("frequency", {"strength": math.inf}, "strength = inf"),
        ("presence_window", {"strength": math.nan}, "strength = nan"),
        ("presence_window", {"window": 0}, "window = 0"),
        ("dry", {"multiplier": -0.1}, "multiplier = -0.1"),
        ("dry", {"base": 0.5}, "base = 0.5"),
        ("dry", {"allowed_length": 0}, "allowed_length = 0"),
        ("dry", {"longest": 1}, "longest = 1"),
        ("no_repeat_ngram", {"ngram_size": -1}, "ngram_size = -1"),
        ("nowait", {"words": "wait"}, "a list of words"),
        ("nowait", {"words": ["wait", "--"]}, "words = '--'"),
        ("lz", {"alpha": "much"}, "alpha = 'much'"),
        ("lz", {"exempt": [1.5]}, "exempt = 1.5"),
        ("frequency", {"include_prompt": 1}, "include_prompt = 1"),
        ("frequency", {"pad_token_id": 0.0}, "pad_token_id = 0.0"),
    ],
)
def test_bad_parameters_are_refused(name, options, message):
    with pytest.raises(InvalidValue, match=message):
        penalties.get(name, **options)
