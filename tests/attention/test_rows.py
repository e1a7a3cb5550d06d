"""A row of a ragged batch behaves like that row alone, whatever happens to the other rows."""

from __future__ import annotations

import pytest
import torch
from examples import FIRST

import attention
from attention.testing.driving import follow, prefill, step
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


@torch.no_grad()
def test_prompts_that_all_layers_cut_together_leave_no_memory() -> None:
    model = tiny_model()
    with attention.RKV(budget=18, shared=True).on(model) as cache:
        prefill(model, cache, prompts((60, 5)))
        assert {layer.k.capacity for layer in cache.layers} == {18}
