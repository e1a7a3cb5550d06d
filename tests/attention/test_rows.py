"""A row of a ragged batch behaves like that row alone, whatever happens to the other rows."""

from __future__ import annotations

import pytest
import torch
from examples import FIRST

import attention
from attention.testing.driving import decode, follow, prefill, step
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

LENGTHS = (3, 27, 30, 16)
STATS = ("kept_max", "read_max", "read_mean", "keys_read", "bytes")


def prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> list[torch.Tensor]:
    return [tokens(n, seed=seed + i) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_beams_reorder_the_state(backend: attention.Backend) -> None:
    m = tiny_model()
    prompt = tokens(1, 20)
    with backend.on(m) as cache, torch.no_grad():
        sequence = m.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            past_key_values=cache,
            max_new_tokens=12,
            num_beams=3,
            do_sample=False,
        )[0]
        assert len(sequence) == 32
        # A beam's score is the sum of its own log probabilities, which needs its own state.
        replay = cache.new()
        logits = follow(m, replay, [prompt[0]], sequence[None, 20:])[0, :-1]
        scores = logits.log_softmax(-1).gather(-1, sequence[20:, None])
        best = m.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            past_key_values=cache.new(),
            max_new_tokens=12,
            num_beams=3,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            length_penalty=0.0,
        )
    assert float(best.sequences_scores[0]) == pytest.approx(float(scores.sum()), abs=1e-5)


def test_bad_rows_are_refused() -> None:
    m = tiny_model()
    with attention.Full().on(m) as cache:
        prefill(m, cache, prompts())
        fresh = cache.new()
        prefill(m, fresh, prompts((4, 5)))
        for call in (
            lambda: cache.select_rows([4]),
            lambda: cache.select_rows([-1]),
            lambda: cache.replace_rows([0], fresh),
            lambda: cache.replace_rows([0, 0], fresh),
            lambda: cache.replace_rows([0], fresh, [2]),
        ):
            with pytest.raises(attention.InvalidValue, match="row"):
                call()
        with (
            attention.Full().on(m) as other,
            pytest.raises(attention.InvalidValue, match="same"),
        ):
            cache.replace_rows([0], other)
        step(m, fresh, tokens(2))  # and the refusals left everything usable


@pytest.mark.parametrize(
    "backend",
    [
        attention.H2O(budget=8),
        attention.InfLLM(budget=16),
        attention.Oracle(top_p=0.7),
        attention.Quest(budget=8, page=4, dense_layers=0, gqa="query_head"),
    ],
    ids=str,
)
def test_selecting_no_row_and_one_row_of_many(backend: attention.Backend) -> None:
    m = tiny_model()
    with backend.on(m) as cache:
        follow(m, cache, prompts(), tokens(4, 12))
        before, read = cache.row_stats(), [cache.read_positions(i)[2] for i in range(2)]
        cache.select_rows([2])
        assert cache.seen.tolist() == [42]
        for name in STATS:
            assert getattr(cache.row_stats(), name).tolist() == [getattr(before, name)[2]], name
        assert all(torch.equal(cache.read_positions(i)[0], read[i]) for i in range(2))
        cache.select_rows([])
        assert cache.seen.tolist() == []


def test_a_replaced_row_has_read_nothing_yet() -> None:
    """Of the layer itself: the previous occupant's numbers are gone."""
    m = tiny_model()
    with attention.SnapKV(budget=17).on(m) as cache:
        follow(m, cache, prompts(), tokens(4, 12))
        fresh = cache.new()
        prefill(m, fresh, prompts((4,)))
        layer, seen = cache.layers[0], cache.seen.numpy()
        assert layer.reads(seen)[1] > 0
        cache.replace_rows([1], fresh)
        assert (layer.reads(seen)[1], layer.read_positions(1, 4).shape[-1]) == (0, 0)
        layer.clear(torch.tensor([0]))
        assert (layer.reads(seen)[0], layer.kept(seen)[0]) == (0, 0)


@pytest.mark.parametrize(
    "backend",
    [
        attention.Sink(budget=32, keep_prompt=True),
        attention.H2O(budget=128, keep_prompt=True),
        attention.SnapKV(budget=64),
    ],
    ids=str,
)
def test_a_replaced_row_is_the_newcomer_alone(backend: attention.Backend) -> None:
    """Nothing of the row before is left: a long one gives its place to a short one."""
    m, then = tiny_model(), tokens(3, 30, seed=7)
    with backend.on(m) as cache:
        follow(m, cache, prompts((20, 30, 28)), tokens(3, 100, seed=6))
        alone = cache.new()
        prefill(m, alone, prompts((5,), seed=9))
        cache.replace_rows([2], alone)
        together = decode(m, cache, then)[2]
        by_itself = decode(m, alone, then[2:])[0]
        assert (together - by_itself).abs().max() < 1e-9
        for layer in range(m.config.num_hidden_layers):
            places = [x.kept_positions(layer)[row] for x, row in ((cache, 2), (alone, 0))]
            assert torch.equal(*places)
        for name in STATS:
            ours, want = (getattr(x.row_stats(), name) for x in (cache, alone))
            assert ours[2] == want[0], name


@pytest.mark.parametrize(
    "backend", [*FIRST, attention.InfLLM(budget=64, far_position="absolute")], ids=str
)
def test_what_reads_all_keys_counts_all_and_no_more(backend: attention.Backend) -> None:
    """While a method is exact, a step costs the keys of full attention."""
    m = tiny_model()
    lengths = [n for n in range(8, 72) if n < backend.exact_until]
    if not lengths:
        return
    with attention.Full().on(m) as full, backend.on(m) as cache:
        for each in (full, cache):
            prefill(m, each, [tokens(8, seed=1)])
        for token in tokens(1, len(lengths), seed=2)[0]:
            for each in (full, cache):
                decode(m, each, token.view(1, 1))
            assert cache.row_stats().keys_read[0] == full.row_stats().keys_read[0]
