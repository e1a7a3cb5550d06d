"""Degenerate repetition against its definition, word for word."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.store.samples.repetition import loops, repeats


def by_definition(tokens: list[int], times: int) -> bool:
    """Every start, every period: are there `times` equal blocks?"""
    for start in range(len(tokens)):
        for period in range(1, (len(tokens) - start) // times + 1):
            block = tokens[start : start + period]
            if tokens[start : start + period * times] == block * times:
                return True
    return False


def test_twenty_times_are_degenerate():
    assert repeats([7] * 20)
    assert not repeats([7] * 19)


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(1, 4), st.integers(1, 9))
def test_loops_are_passages_at_many_places(tokens: list[int], size: int, times: int):
    starts = range(len(tokens) - size + 1)
    same = [sum(tokens[i : i + size] == tokens[j : j + size] for j in starts) for i in starts]
    assert loops(tokens, size, times) is (max(same, default=0) >= times)
    assert loops([7] * 49)
    assert not loops([7] * 48)


# A block over few tokens, repeated about as often as asked, a token changed here and there.
streams = st.builds(
    lambda before, block, times, cut, after, at, token: (
        lambda text: (
            [*text[: at % len(text)], token, *text[at % len(text) + 1 :]]
            if at < len(text)
            else text
        )
    )([*before, *(block * times)[cut:], *after]),
    st.lists(st.integers(0, 2), max_size=9),
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.integers(1, 8),
    st.integers(0, 6),
    st.lists(st.integers(0, 2), max_size=9),
    st.integers(0, 120),
    st.integers(0, 2),
)


@given(streams, st.integers(2, 7))
@example([0, 0, 0], 3)
@example([1, 0, 1, 0, 1, 0], 3)
@example([5, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 7], 3)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_equals_the_definition(tokens: list[int], times: int):
    assert repeats(tokens, times) is by_definition(tokens, times)
