"""Penalties of requests that come and go are those of each request's own history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
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
# A step: for each of four requests, in which order they stand, whether it is there, whether it has
# a new token and which, and whether a new request takes its place.
STEP = st.tuples(
    st.permutations(range(4)),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
)


class Request:
    """A history that grows; equal to itself alone."""

    def __init__(self, penalty: Penalty) -> None:
        self.penalty = penalty
        self.tokens: list[int] = []


def step(rows: PenaltyRows, requests: list[Request], places, scores: torch.Tensor) -> torch.Tensor:
    """One step of these requests, whose newest token may be a new one."""
    return rows.apply(
        requests,
        [len(one.tokens) for one in requests],
        torch.tensor([(one.tokens or [0])[-1] for one in requests], dtype=torch.int64),
        lambda which: padded([requests[i].tokens for i in which], CPU),
        places,
        scores,
    )


def alone(one: Request, scores: torch.Tensor) -> torch.Tensor:
    """Scores (V,) of a request by itself."""
    history = torch.tensor([one.tokens], dtype=torch.int64)
    return one.penalty.penalise(history, torch.tensor([len(one.tokens)]), scores[None])[0]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    st.lists(STEP, min_size=1, max_size=14),
    st.integers(0, 99),
)
def test_rows_have_the_scores_of_their_own_history(kinds, steps, seed):
    """Whatever the penalties of the others, and whether they are computed together or not."""
    drawn = torch.Generator().manual_seed(seed)
    requests, rows = [Request(kinds[i % len(kinds)]) for i in range(4)], PenaltyRows()
    for order, there, grows, tokens, renewed in steps:
        for i, one in enumerate(requests):
            if renewed[i] == 0:
                requests[i] = Request(kinds[tokens[i] % len(kinds)])
            elif renewed[i] == 1 and len(one.tokens) > 2:
                del one.tokens[-2:]
            elif grows[i]:
                # Also while it is not scheduled: an engine may put a request back and catch up.
                one.tokens.append(tokens[i])
        # Row 4 is a request that asked for nothing.
        scores = torch.randn(5, V, generator=drawn)
        present = [i for i in order if there[i]]
        expected = scores.clone()
        for i in present:
            expected[i] = alone(requests[i], scores[i])
        found = step(rows, [requests[i] for i in present], present, scores)
        assert torch.equal(found, expected)
        assert len(rows) == len(present)


@pytest.mark.parametrize("penalty", KINDS)
@pytest.mark.parametrize("second", [[0, 2], [1, 0]], ids=["replaced", "exchanged"])
def test_requests_are_not_told_apart_by_their_lengths(penalty, second):
    """Others in the places of the first, each with a token more than what stood there."""
    requests = [Request(penalty) for _ in range(3)]
    requests[0].tokens = [1, 2, 3, 1, 2, 3, 1]
    requests[1].tokens = [4, 1, 4, 1, 4, 1, 4]
    requests[2].tokens = [3, 3, 3, 3, 3, 3, 3, 3]
    rows, scores = PenaltyRows(), torch.randn(2, V)
    for which in [0, 1], second:
        present = [requests[i] for i in which]
        found = step(rows, present, [0, 1], scores.clone())
        for one, row, raw in zip(present, found, scores, strict=True):
            assert torch.equal(row, alone(one, raw))
        for one in requests[:2]:
            one.tokens.append(2)


@pytest.mark.parametrize("penalty", [LZPenalty(), DRYPenalty(), PresenceWindowPenalty()])
def test_nothing_is_left_of_requests_that_left(penalty):
    """Requests of eight tokens each, three at a time: every few steps one leaves, one comes."""
    rows, sizes = PenaltyRows(), []
    requests = [Request(penalty) for _ in range(3)]
    for now in range(200):
        requests = [Request(penalty) if len(one.tokens) == 8 else one for one in requests]
        for i, one in enumerate(requests):
            if i <= now:
                one.tokens.append(now % 5)
        step(rows, requests, range(3), torch.zeros(3, V))
        sizes.append(rows.nbytes)
    assert max(sizes[100:]) <= max(sizes[:50])
    step(rows, [], [], torch.zeros(0, V))
    assert (len(rows), rows.nbytes) == (0, 0)


def test_a_long_window_takes_room_for_as_long_as_its_request_is_there():
    short, long = Request(LZPenalty()), Request(LZPenalty(window=60_000))
    rows, sizes = PenaltyRows(), []
    for requests in [short], [short, long], [short]:
        step(rows, requests, range(len(requests)), torch.zeros(len(requests), V))
        sizes.append(rows.nbytes)
    assert sizes[0] == sizes[2]


@dataclass(frozen=True, kw_only=True)
class Lists(Penalty):
    """A penalty that remembers lists."""

    name: ClassVar[str] = "lists"

    def begin(self, history, vocabulary, /):  # noqa: ARG002
        return history.tolist()

    def apply(self, memory, scores):  # noqa: ARG002
        return scores

    def penalise(self, history, lengths, scores):  # noqa: ARG002
        return scores


def test_a_memory_whose_rows_are_unknown_is_refused_when_requests_change_places():
    rows = PenaltyRows()
    one, two = Request(Lists()), Request(Lists())
    one.tokens, two.tokens = [1, 2], [3]
    # Their company is that of equal penalties.
    step(rows, [one], [0], torch.zeros(1, V))
    with pytest.raises(InvalidValue, match="remembers tokens"):
        step(rows, [two, one], [0, 1], torch.zeros(2, V))
