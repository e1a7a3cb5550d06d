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

    def __init__(self) -> None:
        self.tokens: list[int] = []


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.lists(STEP, min_size=1, max_size=14), st.integers(0, 99))
def test_rows_have_the_scores_of_their_own_history(penalty, steps, seed):
    drawn = torch.Generator().manual_seed(seed)
    requests, rows = [Request() for _ in range(4)], PenaltyRows(penalty)
    for order, there, grows, tokens, renewed in steps:
        for i, one in enumerate(requests):
            if renewed[i] == 0:
                requests[i] = Request()
            elif grows[i]:
                # Also while it is not scheduled: an engine may put a request back and catch up.
                one.tokens.append(tokens[i])
        # Row 4 is a request that asked for nothing.
        scores = torch.randn(5, V, generator=drawn)
        present = [i for i in order if there[i]]
        expected = scores.clone()
        for i in present:
            history = torch.tensor([requests[i].tokens], dtype=torch.int64)
            lengths = torch.tensor([history.shape[1]])
            expected[i] = penalty.penalise(history, lengths, scores[i : i + 1])[0]
        found = rows.apply(
            [requests[i] for i in present],
            [len(requests[i].tokens) for i in present],
            torch.tensor([(requests[i].tokens or [0])[-1] for i in present], dtype=torch.int64),
            lambda which, of=present: padded([requests[of[i]].tokens for i in which], CPU),
            present,
            scores,
        )
        assert torch.equal(found, expected)
        assert len(rows) == len(present)


@pytest.mark.parametrize("penalty", KINDS)
@pytest.mark.parametrize("second", [[0, 2], [1, 0]], ids=["replaced", "exchanged"])
def test_requests_are_not_told_apart_by_their_lengths(penalty, second):
    """Others in the places of the first, each with a token more than what stood there."""
    requests = [Request() for _ in range(3)]
    requests[0].tokens = [1, 2, 3, 1, 2, 3, 1]
    requests[1].tokens = [4, 1, 4, 1, 4, 1, 4]
    requests[2].tokens = [3, 3, 3, 3, 3, 3, 3, 3]
    rows, scores = PenaltyRows(penalty), torch.randn(2, V)
    for which in [0, 1], second:
        present = [requests[i] for i in which]
        found = rows.apply(
            present,
            [len(one.tokens) for one in present],
            torch.tensor([one.tokens[-1] for one in present]),
            lambda at, of=present: padded([of[i].tokens for i in at], CPU),
            [0, 1],
            scores.clone(),
        )
        for one, row, raw in zip(present, found, scores, strict=True):
            lengths = torch.tensor([len(one.tokens)])
            alone = penalty.penalise(torch.tensor([one.tokens]), lengths, raw[None])
            assert torch.equal(row, alone[0])
        for one in requests[:2]:
            one.tokens.append(2)


@pytest.mark.parametrize("penalty", [LZPenalty(), DRYPenalty(), PresenceWindowPenalty()])
def test_nothing_is_left_of_requests_that_left(penalty):
    """Requests of eight tokens each, three at a time: every few steps one leaves, one comes."""
    rows, sizes = PenaltyRows(penalty), []
    requests = [Request() for _ in range(3)]
    for step in range(200):
        requests = [Request() if len(one.tokens) == 8 else one for one in requests]
        for i, one in enumerate(requests):
            if i <= step:
                one.tokens.append(step % 5)
        rows.apply(
            requests,
            [len(one.tokens) for one in requests],
            torch.full((3,), step % 5),
            lambda which, of=requests: padded([of[i].tokens for i in which], CPU),
            range(3),
            torch.zeros(3, V),
        )
        sizes.append(rows.nbytes)
    assert max(sizes[100:]) <= max(sizes[:50])
    rows.apply([], [], torch.zeros(0, dtype=torch.int64), lambda _: None, [], torch.zeros(0, V))
    assert (len(rows), rows.nbytes) == (0, 0)


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
    rows = PenaltyRows(Lists())
    one, two = Request(), Request()
    one.tokens, two.tokens = [1, 2], [3]

    def step(requests):
        rows.apply(
            requests,
            [len(r.tokens) for r in requests],
            torch.tensor([r.tokens[-1] for r in requests]),
            lambda which: padded([requests[i].tokens for i in which], CPU),
            range(len(requests)),
            torch.zeros(len(requests), V),
        )

    step([one])
    with pytest.raises(InvalidValue, match="remembers tokens"):
        step([two, one])
