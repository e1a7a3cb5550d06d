"""What holds for every penalty: padding, growth, rows, clones, beams, neutrality, types."""

from __future__ import annotations

import math
import random

import pytest
import torch
from penalty_cases import CASES, PAD, V, build, close, expected, random_scores

from lil import penalties


@pytest.mark.parametrize("case", CASES)
def test_stateless_equals_stateful_to_the_bit(case):
    """History, lengths and scores are all that counts; not what is before short rows."""
    rng = random.Random(4)
    ids = torch.tensor([[rng.randrange(1, 5) for _ in range(40)] for _ in range(4)])
    lengths, penalty = torch.tensor([40, 11, 1, 0]), build(case, include_prompt=True)
    before = torch.arange(40) < 40 - lengths[:, None]
    masked = penalty.with_mask(~before[:, :38])
    for n in (38, 39, 40):
        stateful = masked(ids[:, :n], random_scores(4))
    lengths = torch.tensor([40, 11, 2, 2])  # the last two columns are tokens of every row
    scores = random_scores(4)
    stateless = penalty.penalise(ids, lengths, scores)
    assert torch.equal(stateless, stateful)
    assert torch.equal(scores, random_scores(4))
    assert torch.equal(
        penalty.penalise(ids.masked_fill(before, 3)[:1], lengths[:1], scores[:1]), stateless[:1]
    )


# What acts without a history changes the first scores, too.
@pytest.mark.parametrize("case", [case for case in CASES if case != "nowait"])
def test_a_call_that_does_not_go_on_starts_anew_and_beams_are_computed_again(case):
    penalty, scores = build(case), random_scores(2)
    ids = torch.tensor([[5, 5, 5], [5, 5, 5]])
    assert torch.equal(penalty(ids, scores), scores)
    ids = torch.cat((ids, torch.tensor([[1], [2]])), dim=1)
    close(penalty(ids, scores), expected(case, [[1], [2]], scores))
    # Both rows go on from the second one.
    ids = torch.cat((ids[[1, 1]], torch.tensor([[2], [1]])), dim=1)
    close(penalty(ids, scores), expected(case, [[2, 2], [2, 1]], scores))
    ids = torch.cat((ids[[1, 0]], torch.tensor([[2], [2]])), dim=1)
    close(penalty(ids, scores), expected(case, [[2, 1, 2], [2, 2, 2]], scores))
    ids = torch.cat((ids, torch.tensor([[1], [2]])), dim=1)
    close(penalty(ids, scores), expected(case, [[2, 1, 2, 1], [2, 2, 2, 2]], scores))
    # Another prompt, one column wider: a new generation.
    ids = torch.tensor([[6] * 8, [1] * 8])
    assert torch.equal(penalty(ids, scores), scores)
    assert torch.equal(penalty(ids[:1], scores[:1]), scores[:1])


NEUTRAL = {
    "lz": {"alpha": 0.0},
    "frequency": {"strength": 0},
    "presence": {"strength": 0.0},
    "presence_window": {"strength": 0.0},
    "dry": {"multiplier": 0.0},
    "no_repeat_ngram": {"ngram_size": 0},
    "nowait": {"words": []},
    "repetition": {"penalty": 1},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_parameters_give_back_the_very_object(name, dtype):
    assert set(NEUTRAL) == set(penalties.names())
    scores = random_scores(2, dtype=dtype)
    tiny = torch.finfo(dtype).tiny / 2
    scores[0, :6] = torch.tensor([-0.0, math.nan, math.inf, -math.inf, tiny, 0.0])
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    before = scores.view(bits).clone()
    penalty = penalties.get(name, include_prompt=True, **NEUTRAL[name])
    for n in (2, 39, 40):
        assert penalty(torch.tensor([[0, 1, 2, 3, 4, 5] * 7] * 2)[:, :n], scores) is scores
    assert torch.equal(scores.view(bits), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_other_types_are_kept_and_rounded_once(case, dtype):
    ids = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 4, 1, 2] * 3])
    scores = random_scores(1, dtype=dtype)
    out = build(case, include_prompt=True)(ids, scores)
    assert out.dtype == dtype
    wanted = expected(case, ids.tolist(), scores)
    eps = 2**-8 if dtype == torch.bfloat16 else 1e-9
    torch.testing.assert_close(out.double(), wanted, atol=1e-7, rtol=eps)


@pytest.mark.parametrize("grown", [0, 4])
@pytest.mark.parametrize("case", CASES)
def test_ids_beyond_the_scores_are_tokens_nobody_can_choose(case, grown):
    """Embeddings may have more rows than the model has scores; the other scores are as if V, V + 3
    and V + 40 were tokens of their own."""
    names = {12: V, 13: V + 3, 14: V + 40}
    rows = [
        [1, 13, 1, 13, 2, 1, 13, 5, 14, 14, 1, 2, 1, 13],
        # After padding, which is none of these.
        [5, 12, 12],
        [5, 14, 14],
        [7, 12, 12, 8, 14, 12, 12, 8, 14],
    ]
    width = max(len(row) for row in rows)
    named = [[names.get(token, token) for token in row] for row in rows]
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in named])
    penalty, scores = build(case, include_prompt=True, pad_token_id=PAD), random_scores(len(rows))
    for n in range(width - grown, width):
        penalty(ids[:, :n], scores)
    known = [token for token in range(V) if token not in names]
    close(penalty(ids, scores)[:, known], expected(case, rows, scores)[:, known])


@pytest.mark.parametrize("name", ["lz", "presence_window", "dry"])
def test_in_place_writes_what_a_copy_would_hold(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 9, (3, 10), generator=generator).repeat(1, 6)
    penalty = penalties.get(name, include_prompt=True).with_mask(ids[:, :40] != 4)
    writing = penalty.in_place()
    for width in range(40, 60):
        scores = torch.randn(3, 12, generator=generator)
        before = scores.clone()
        expected = penalty(ids[:, :width], scores)
        assert torch.equal(scores, before)
        assert writing(ids[:, :width], scores) is scores
        assert torch.equal(scores, expected)
        assert not torch.equal(scores, before)
