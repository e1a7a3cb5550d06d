"""Penalties of requests that come and go are those of each request's own history."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lil import LZPenalty
from lil.penalties import DRYPenalty, Penalty, PresenceWindowPenalty, RepetitionPenalty
from lil.serving.rows import PenaltyRows, padded

V, CPU = 12, torch.device("cpu")
KINDS = [
    LZPenalty(alpha=0.3, window=9, buffer=3),
    LZPenalty(alpha=0.3, window=9, buffer=3, formula="printed"),
    LZPenalty(alpha=0.3, window=9, buffer=3, formula="rate"),
    LZPenalty(alpha=0.3, window=9, buffer=3, exempt=(2,)),
    DRYPenalty(sequence_breakers=[3]),
    PresenceWindowPenalty(strength=0.7, window=6),
    RepetitionPenalty(penalty=1.3),
]
# A step: for each of four requests, in which order they are, whether it is scheduled, whether it
# has a new token and which, and whether a new request takes its place.
STEP = st.tuples(
    st.permutations(range(4)),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
)


class Request:
    """A history that grows. Equality is identity."""

    def __init__(self, penalty: Penalty) -> None:
        self.penalty = penalty
        self.tokens: list[int] = []


def step(rows: PenaltyRows, requests: list[Request], places: Any, scores: Any) -> torch.Tensor:
    """One step of these requests, whose newest token may be a new one."""
    return rows.apply(
        requests,
        [len(request.tokens) for request in requests],
        torch.tensor([(request.tokens or [0])[-1] for request in requests], dtype=torch.int64),
        lambda indices: padded([requests[i].tokens for i in indices], CPU),
        places,
        scores,
    )


def single(request: Request, scores: torch.Tensor) -> torch.Tensor:
    """Scores (V,) of a request by itself."""
    history = torch.tensor([request.tokens], dtype=torch.int64)
    length = torch.tensor([len(request.tokens)])
    return request.penalty.penalise(history, length, scores[None])[0]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    st.lists(STEP, min_size=1, max_size=14),
    st.integers(0, 99),
)
def test_rows_have_the_scores_of_their_own_history(kinds: Any, steps: Any, seed: int) -> None:
    """Whatever the penalties of the others, and whether they are computed together or not."""
    drawn = torch.Generator().manual_seed(seed)
    requests, rows = [Request(kinds[i % len(kinds)]) for i in range(4)], PenaltyRows()
    for order, scheduled, grows, tokens, renewed in steps:
        for i, request in enumerate(requests):
            if renewed[i] == 0:
                requests[i] = Request(kinds[tokens[i] % len(kinds)])
            elif renewed[i] == 1 and len(request.tokens) > 2:
                del request.tokens[-2:]
            elif grows[i]:
                # Also while it is not scheduled: an engine may put a request back and catch up.
                request.tokens.append(tokens[i])
        # Row 4 is a request that asked for nothing.
        scores = torch.randn(5, V, generator=drawn)
        present = [i for i in order if scheduled[i]]
        expected = scores.clone()
        for i in present:
            expected[i] = single(requests[i], scores[i])
        assert torch.equal(step(rows, [requests[i] for i in present], present, scores), expected)
        assert len(rows) == len(present)


@pytest.mark.parametrize("penalty", [LZPenalty(), DRYPenalty(), PresenceWindowPenalty()])
def test_nothing_is_left_of_requests_that_left(penalty: Penalty) -> None:
    """Requests of eight tokens each, three at a time: every few steps one leaves, one comes."""
    rows, sizes = PenaltyRows(), []
    requests = [Request(penalty) for _ in range(3)]
    for now in range(100):
        requests = [Request(penalty) if len(r.tokens) == 8 else r for r in requests]
        for i, request in enumerate(requests):
            if i <= now:
                request.tokens.append(now % 5)
        step(rows, requests, range(3), torch.zeros(3, V))
        sizes.append(rows.nbytes)
    assert max(sizes[50:]) <= max(sizes[:50])
    step(rows, [], [], torch.zeros(0, V))
    assert (len(rows), rows.nbytes) == (0, 0)
