"""Penalties by name, and what they refuse."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from penalty_cases import random_scores
from torch import Tensor
from transformers import LogitsProcessor

from attention.errors import InvalidValue
from lil import LZPenalty, Penalty, penalties


def test_penalties_by_name():
    wanted = ["dry", "frequency", "lz", "no_repeat_ngram", "presence", "presence_window"]
    assert penalties.names() == [*wanted, "repetition"]
    assert penalties.get("lz", alpha=0.2) == LZPenalty(alpha=0.2)
    for name, line in penalties.describe().items():
        penalty = penalties.get(name)
        assert isinstance(penalty, penalties.Penalty)
        assert isinstance(penalty, LogitsProcessor)
        assert penalties.get(name, **penalty.params()) == penalty
        assert line.endswith(").")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lzz", {}, "did you mean 'lz'"),
        ("lz", {"alfa": 1}, "did you mean 'alpha'"),
        ("lz", {"alpha": -1}, "alpha = -1"),
        ("lz", {"alpha": math.nan}, "alpha = nan"),
        ("lz", {"window": 0}, "window = 0"),
        ("lz", {"buffer": 0}, "buffer = 0"),
        ("lz", {"formula": "rates"}, "did you mean 'rate'"),
        ("lz", {"formula": "rate", "window": 32}, "window = 32"),
        ("repetition", {"penalty": 0}, "penalty = 0"),
        ("frequency", {"strength": math.inf}, "strength = inf"),
        ("presence", {"strength": math.nan}, "strength = nan"),
        ("presence_window", {"strength": math.nan}, "strength = nan"),
        ("presence_window", {"window": 0}, "window = 0"),
        ("dry", {"multiplier": -0.1}, "multiplier = -0.1"),
        ("dry", {"base": 0.5}, "base = 0.5"),
        ("dry", {"allowed_length": 0}, "allowed_length = 0"),
        ("dry", {"longest": 1}, "longest = 1"),
        ("no_repeat_ngram", {"ngram_size": -1}, "ngram_size = -1"),
        ("lz", {"window": 512.0}, "window = 512.0"),
        ("lz", {"alpha": "much"}, "alpha = 'much'"),
        ("lz", {"exempt": [1.5]}, "exempt = 1.5"),
        ("dry", {"longest": 50.0}, "longest = 50.0"),
        ("frequency", {"include_prompt": 1}, "include_prompt = 1"),
        ("frequency", {"pad_token_id": 0.0}, "pad_token_id = 0.0"),
    ],
)
def test_bad_parameters_are_refused(name, options, message):
    with pytest.raises(InvalidValue, match=message):
        penalties.get(name, **options)


def test_numbers_of_numpy_are_numbers():
    penalty = LZPenalty(window=np.int64(9), alpha=np.float32(0.5), exempt=[np.int32(3)])
    assert penalty == LZPenalty(window=9, alpha=0.5, exempt=[3])
    assert json.loads(json.dumps(penalty.params())) == penalty.params()


@dataclass(frozen=True, kw_only=True)
class Last(Penalty):
    """The last token loses a score unit."""

    name: ClassVar[str] = "last"

    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        hit = torch.zeros_like(scores)
        if history.shape[1]:
            hit.scatter_(1, history[:, -1:].clamp(min=0), (lengths > 0).to(scores.dtype)[:, None])
        return scores - hit


def test_one_method_is_a_penalty():
    penalty, scores = penalties.get(f"{__name__}:Last"), torch.zeros(2, 6)
    ids = torch.tensor([[5, 5, 2], [5, 5, 3]])
    assert torch.equal(penalty(ids[:, :2], scores), scores)
    assert penalty(ids, scores).nonzero().tolist() == [[0, 2], [1, 3]]
    with pytest.raises(InvalidValue, match=r"a subclass of lil\.Penalty"):
        penalties.get("json:JSONDecoder")


def test_shapes_that_do_not_belong_together_are_refused():
    scores = random_scores(2)
    with pytest.raises(InvalidValue, match="input_ids and scores"):
        LZPenalty()(torch.tensor([[1, 2]]), scores)
    with pytest.raises(InvalidValue, match="attention_mask"):
        LZPenalty(include_prompt=True).with_mask(torch.ones(2, 5))(torch.ones(2, 4).long(), scores)
    with pytest.raises(InvalidValue, match="attention_mask"):
        LZPenalty().with_mask(torch.ones(5))
