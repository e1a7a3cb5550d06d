"""Models in which some layers keep another state than keys: it goes wherever their rows go."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from float64 import InFloat64
from transformers import Cache
from wild import HYBRID, alone, wild

import attention
from attention.testing.driving import decode, follow, left_padded, prefill, step
from attention.testing.driving import text as tokens

pytestmark = pytest.mark.skipif(
    not hasattr(Cache, "get_conv_state"), reason="this transformers gives each hybrid its own cache"
)
families = pytest.mark.parametrize("family", HYBRID)
BACKENDS = (attention.H2O(budget=8),)
LENGTHS = (3, 11, 7)


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with InFloat64():
        yield


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool((got - want).abs().max() <= 1e-9 * want.abs().max())


@families
def test_full_attention_is_the_models_own(family: str) -> None:
    m, answers = wild(family), tokens(3, 5, seed=9)
    texts = [tokens(n, seed=n) for n in LENGTHS]
    want = torch.stack([alone(m, *pair) for pair in zip(texts, answers, strict=True)])
    with attention.Full().on(m) as cache:
        assert same(follow(m, cache, texts, answers), want)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@families
def test_states_go_where_rows_go(family: str, backend: attention.Backend) -> None:
    m, answers = wild(family), tokens(3, 12, seed=9)
    texts = [tokens(n, seed=n) for n in LENGTHS]
    with backend.on(m) as cache:
        want = torch.stack(
            [follow(m, cache.new(), [x], answers[r : r + 1])[0] for r, x in enumerate(texts)]
        )
        follow(m, cache, texts, answers[:, :2])
        twin, half = cache.clone(), cache.clone([1])
        cache.reorder_cache(torch.tensor([2, 0, 2]))
        assert same(decode(m, cache, answers[[2, 0, 2], 2:5]), want[[2, 0, 2], 3:6])
        cache.batch_repeat_interleave(2)
        cache.select_rows([0, 2])
        assert same(decode(m, cache, answers[[2, 0], 5:7]), want[[2, 0], 6:8])
        assert same(decode(m, twin, answers[:, 2:4]), want[:, 3:5])
        assert same(decode(m, half, answers[1:2, 2:4]), want[1:2, 3:5])
        # A newcomer takes the place of a row, another comes behind.
        fresh = cache.new()
        prefill(m, fresh, [texts[1]])
        cache.replace_rows([1], fresh)
        assert same(decode(m, cache, answers[[2, 1], :1]), decode_of(m, cache, want, answers))
        fresh = cache.new()
        prefill(m, fresh, [texts[0]])
        cache.append_rows(fresh)
        assert cache.seen.tolist() == [7 + 8, 11 + 1, 3]
        got = decode(m, cache, torch.stack((answers[2, 8], answers[1, 1], answers[0, 0]))[:, None])
        assert same(got[1:, 0], torch.stack((want[1, 2], want[0, 1])))
        empty = cache.new()
        empty.append_rows(fresh)
        assert same(decode(m, empty, answers[:1, :3]), want[:1, 1:4])


def decode_of(m: Any, cache: Any, want: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Row 2 went on with row 2's first token, after its seventh; row 1 is at its first."""
    text = torch.cat((tokens(LENGTHS[2], seed=LENGTHS[2]), answers[2, :7]))
    other = cache.new()
    follow(m, other, [text[: LENGTHS[2]]], answers[2:3, :7])
    return torch.stack((step(m, other, answers[2, :1])[0], want[1, 1]))[:, None]


def test_states_do_not_go_back_and_that_is_said() -> None:
    m = wild("lfm2")
    with attention.Full().on(m) as cache:
        follow(m, cache, [tokens(5)], tokens(1, 4))
        assert not cache.rewindable
        assert not cache.is_croppable
        copied = cache.clone()
        says = "2 of the 4 layers keep a state that cannot go back"
        with pytest.raises(attention.InvalidValue, match=f"crop = '2 tokens less'.*{says}"):
            cache.crop(-2)
        with pytest.raises(attention.InvalidValue, match=f"rewind.*{says}"):
            cache.rewind(0, 4)
        cache.rewind(0, 9)
        assert torch.equal(step(m, cache, tokens(1)), step(m, copied, tokens(1)))
        with pytest.raises(attention.InvalidValue, match=f"prompt_lookup_num_tokens.*{says}"):
            m.generate(
                input_ids=tokens(1, 9),
                attention_mask=torch.ones(1, 9, dtype=torch.long),
                past_key_values=cache.new(),
                prompt_lookup_num_tokens=2,
                max_new_tokens=4,
            )


def test_numbers_are_of_the_softmax_layers_and_say_so() -> None:
    m = wild("qwen3_next", num_hidden_layers=8, layer_types=None, full_attention_interval=4)
    with attention.H2O(budget=8, dense_layers=1).on(m) as cache:
        follow(m, cache, [tokens(11), tokens(4)], tokens(2, 6))
        rows, stats = cache.row_stats(), cache.stats()
        assert (len(cache.layers), stats.read_max) == (2, 8)
        assert rows.keys_read.tolist() == [2 * (17 + 8), 2 * (10 + 8)]
        assert stats.bytes == rows.bytes.sum()
        assert len(cache.states) == 2 * 6
        assert len(cache.kept_positions(1)[0]) == 2  # KV heads


def test_a_forward_that_broke_off_is_noticed() -> None:
    m = wild("qwen3_next")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with attention.Full().on(m) as cache:
        prefill(m, cache, [tokens(5)])
        for layer in (1, 3):
            broken, hook = cache.clone(), m.model.layers[layer].register_forward_pre_hook(fail)
            with pytest.raises(ZeroDivisionError):
                step(m, broken, tokens(1))
            hook.remove()
            with pytest.raises(RuntimeError, match="half way"):
                step(m, broken, tokens(1))
            with pytest.raises(RuntimeError, match="half way"):
                broken.clone()
        copied = cache.clone()
        with pytest.raises(attention.InvalidValue, match="1 rows"):
            step(m, cache, tokens(2))
        ids, mask = left_padded([tokens(2)])
        with pytest.raises(attention.InvalidValue, match="attention_mask"), torch.no_grad():
            m(input_ids=ids, attention_mask=mask, past_key_values=cache)
        # What was refused has changed nothing.
        assert torch.equal(step(m, cache, tokens(1)), step(m, copied, tokens(1)))
    with pytest.raises(attention.InvalidValue, match="past_key_values"):
        step(m, copy.copy(cache), tokens(1))


@families
def test_known_output_read_at_once_is_output_read_token_by_token(family: str) -> None:
    m, answers = wild(family), tokens(2, 6, seed=9)
    texts = [tokens(11, seed=1), tokens(7, seed=2)]
    with attention.H2O(budget=8).on(m) as cache:
        want = follow(m, cache, texts, answers)
        known = cache.new(prompts=[11, 7])
        both = [torch.cat(pair) for pair in zip(texts, answers[:, :4], strict=True)]
        assert same(prefill(m, known, both)[:, -1], want[:, 4])
        assert same(decode(m, known, answers[:, 4:]), want[:, 5:])
