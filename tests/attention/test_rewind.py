"""A row whose newest tokens are taken back is a row that never produced them."""

from __future__ import annotations

import copy

import pytest
import torch
from examples import FIRST
from states import prompts
from zoo import WINDOW, animal

import attention
from attention.testing.driving import decode, follow
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

NEXT = 20
REWINDABLE = ("noise", "full", "oracle", "quest", "lessismore", "kascade")


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "qwen2_sliding"])
def test_rows_still_inside_a_window_are_rewound_one_by_one(family: str) -> None:
    m, then = animal(family), tokens(2, NEXT, seed=4)
    texts = [tokens(WINDOW + 4), tokens(2, seed=1)]
    with attention.Quest(budget=6, page=3, dense_layers=0).on(m) as cache:
        never = cache.new()
        follow(m, never, texts, tokens(2, WINDOW - 2, seed=5)[:, :1])
        follow(m, cache, texts, tokens(2, WINDOW - 2, seed=5))
        assert not cache.is_croppable
        copied = cache.clone()
        with pytest.raises(attention.InvalidValue, match=r"rewind = 12.*sliding"):
            cache.rewind(0, WINDOW + 5)
        cache.rewind(1, 3)
        assert cache.seen.tolist() == [2 * WINDOW + 2, 3]
        copied.replace_rows([1], never, [1])
        assert torch.equal(decode(m, cache, then), decode(m, copied, then))
        with pytest.raises(attention.InvalidValue, match="sliding"):
            cache.rewind(1, 3)


@pytest.mark.parametrize("seen", [0, 1, 15])
@pytest.mark.parametrize("backend", [b for b in FIRST if b.name in REWINDABLE], ids=str)
def test_a_row_is_rewound_into_its_prompt_and_to_nothing(
    backend: attention.Backend, seen: int
) -> None:
    """Another text where the prompt stood."""
    m, other = tiny_model(), tokens(1, 14, seed=6)
    with backend.on(m) as cache:
        follow(m, cache, prompts(), tokens(3, 8, seed=9))
        cache.rewind(0, seen)
        answers = tokens(3, 14, seed=5)
        answers[0] = other
        got = decode(m, cache, answers)[0]
        whole = torch.cat((prompts()[0][:seen], other[0]))
        start = max(seen, 1)
        want = follow(m, cache.new(), [whole[:start]], whole[None, start:])[0]
        assert (got - want[-14:]).abs().max() < 1e-9
        assert cache.kept_positions(0)[0].shape[-1] == seen + 14


@pytest.mark.parametrize(
    ("row", "seen", "says"),
    [
        (3, 1, "row = .*rows from 0 to 2"),
        (-1, 1, "row = .*rows from 0 to 2"),
        (1, -1, "seen = -1: expected from 0 to the 18 tokens of row 1"),
        (1, 19, "seen = 19: expected from 0 to the 18 tokens of row 1"),
    ],
)
def test_what_cannot_be_rewound_is_refused(row: int, seen: int, says: str) -> None:
    m = tiny_model()
    with attention.Full().on(m) as cache:
        with pytest.raises(attention.InvalidValue, match="no row"):
            cache.rewind(0, 0)
        follow(m, cache, prompts(), tokens(3, 3))
        before_call = copy.deepcopy(cache)
        with pytest.raises(attention.InvalidValue, match=says):
            cache.rewind(row, seen)
        answers = tokens(3, 3, seed=2)
        assert torch.equal(decode(m, cache, answers), decode(m, before_call, answers))
