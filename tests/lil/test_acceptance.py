"""Acceptance: what a method would have chosen is where its own text parts, and costs the same."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

import pytest
import torch
from tiny_models import build_model, build_tokenizer

import attention
import lil
from attention import InvalidValue

PROMPTS = ([5, 9, 2], [7, 1, 4, 4, 8, 2, 30, 6, 11], [3], [12, 40, 2, 6, 19])
TOKENS = (40, 25, 33, 1)
METHODS = ("h2o", "quest", "infllm", "raas")


class Written(NamedTuple):
    """A text without a trace."""

    prompt_ids: list[int]
    new_ids: list[int]


@pytest.fixture(scope="module")
def model():
    return build_model("qwen3", torch.float64)


def backend(name: str):
    small = {"quest": {"page": 4}, "infllm": {"block": 4}, "raas": {"page": 4}}
    return attention.get(name, budget=16, **small.get(name, {}))


def decoded(model, under, prompts=PROMPTS, tokens=TOKENS) -> list[lil.Trace]:
    requests = [
        lil.Request(prompt, max_new_tokens=n) for prompt, n in zip(prompts, tokens, strict=True)
    ]
    return lil.decode(model, build_tokenizer(), requests, backend=under)


def parts_at(result: lil.Trace, other: lil.Trace) -> int:
    pairs = zip(result.new_ids, other.new_ids, strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


@pytest.mark.parametrize("name", METHODS)
def test_a_text_parts_at_the_first_token_that_is_not_accepted(model, name) -> None:
    full, sparse = decoded(model, attention.Full()), decoded(model, backend(name))
    results = lil.acceptance(model, full, backend(name))
    for text, own, result in zip(full, sparse, results, strict=True):
        assert result.steps == text.tokens - 1
        first = parts_at(text, own)
        if first == text.tokens:
            assert result.accepted == result.steps
            assert result.agreed == result.steps
        else:
            assert result.agreed == first - 1  # the first token is the prompt's
            assert not result.chosen[first - 1]


def test_a_wrong_token_is_counted_once_and_what_follows_is_read(model) -> None:
    (text,) = decoded(model, attention.Full(), PROMPTS[:1], TOKENS[:1])
    changed = [*text.new_ids]
    changed[10] = (changed[10] + 1) % 30
    (result,) = lil.acceptance(model, [Written([*PROMPTS[0]], changed)], attention.Full())
    assert result.agreed == 9
    assert not result.chosen[9]
    # What follows is compared with the changed text, not with the old one.
    ids = torch.tensor([[*PROMPTS[0], *changed]])
    best = model(ids).logits[0, len(PROMPTS[0]) : -1].argmax(-1)
    assert result.chosen.tolist() == [
        int(a) == b for a, b in zip(best.tolist(), changed[1:], strict=True)
    ]


def test_what_cannot_be_read_is_refused(model) -> None:
    with pytest.raises(InvalidValue, match="prompt_ids"):
        lil.acceptance(model, [Written([], [6, 7])], attention.Full())
    with pytest.raises(InvalidValue, match="batch_size"):
        lil.acceptance(model, [Written([1], [6, 7])], attention.Full(), batch_size=0)
