"""Penalties of requests that come and go are those of each request's own history."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lil import LZPenalty, penalties
from lil.penalties import DRYPenalty, Penalty, PresenceWindowPenalty, RepetitionPenalty
from lil.serving.rows import HostRequest, PenaltyRows

V = 12
KINDS = [
    LZPenalty(alpha=0.3, window=9, buffer=3),
    LZPenalty(alpha=0.3, window=9, buffer=3, formula="printed"),
    LZPenalty(alpha=0.3, window=9, buffer=3, formula="rate"),
    LZPenalty(alpha=0.3, window=9, buffer=3, exempt=(2,)),
    DRYPenalty(sequence_breakers=[3]),
    PresenceWindowPenalty(strength=0.7, window=6),
    RepetitionPenalty(penalty=1.3),
    penalties.get("nowait", words=(), tokens=(2, 7)),
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


def request_of(penalty: Penalty) -> HostRequest:
    return HostRequest(penalty, (), [])


def single(request: HostRequest, scores: torch.Tensor) -> torch.Tensor:
    """Scores (V,) of a request by itself."""
    history = torch.tensor([request.output], dtype=torch.int64)
    length = torch.tensor([len(request.output)])
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
    requests, rows = [request_of(kinds[i % len(kinds)]) for i in range(4)], PenaltyRows()
    for order, scheduled, grows, tokens, renewed in steps:
        for i, request in enumerate(requests):
            if renewed[i] == 0:
                requests[i] = request_of(kinds[tokens[i] % len(kinds)])
            elif renewed[i] == 1 and len(request.output) > 2:
                del request.output[-2:]
            elif grows[i]:
                # Also while it is not scheduled: an engine may put a request back and catch up.
                request.output.append(tokens[i])
        # Row 4 is a request that asked for nothing.
        scores = torch.randn(5, V, generator=drawn)
        present = [i for i in order if scheduled[i]]
        expected = scores.clone()
        for i in present:
            expected[i] = single(requests[i], scores[i])
        members = [requests[i] for i in present]
        assert torch.equal(rows.apply_on_host(members, present, scores), expected)
        assert len(rows) == len(present)


def test_nothing_is_left_of_requests_that_left() -> None:
    rows = PenaltyRows()
    rows.apply_on_host([request_of(kind) for kind in KINDS], range(8), torch.zeros(8, V))
    assert len(rows) == 8
    rows.apply_on_host([], [], torch.zeros(0, V))
    assert (len(rows), rows._groups) == (0, {})
