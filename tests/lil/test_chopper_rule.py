"""Where chunks end, and when the streaks of hot ones are long enough to chop."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lil.chopper.chunks import Streaks, chunks

Chunks = list[tuple[int, float]]


def run(pairs: Chunks, *rule: Any) -> tuple[int, int] | None:
    """(Chunks seen, tokens kept) when it chops, None if it never does."""
    streaks = Streaks(*rule)
    for number, (tokens, p) in enumerate(pairs, start=1):
        if streaks.push(tokens, p):
            return number, streaks.cold_end
    return None


def by_slices(
    pairs: Chunks, threshold: float, short: int, long_streak: int, short_streak: int
) -> tuple[int, int] | None:
    """The rule backwards: the hot chunks at the end, and how many of them are of one kind."""
    for number in range(1, len(pairs) + 1):
        hot = 0
        while hot < number and pairs[number - 1 - hot][1] > threshold:
            hot += 1
        kinds = "".join("b" if t < short else "l" for t, _ in pairs[number - hot : number])
        longs = len(kinds) - len(kinds.rstrip("l"))
        briefs = len(kinds) - len(kinds.rstrip("b"))
        if longs >= long_streak or briefs >= short_streak:
            return number, sum(tokens for tokens, _ in pairs[: number - hot])
    return None


@settings(max_examples=300)
@given(
    # Mostly hot chunks, short and long ones alike: streaks are long and mixed.
    st.lists(
        st.tuples(st.sampled_from([3, 9, 12]), st.sampled_from([0.1, *[0.6] * 6])), max_size=40
    ),
    st.sampled_from([0.1, 0.5]),
    st.integers(9, 12),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_streaks_are_what_slices_say(
    pairs: Chunks, threshold: float, short: int, long_streak: int, short_streak: int
) -> None:
    rule = (threshold, short, long_streak, short_streak)
    assert run(pairs, *rule) == by_slices(pairs, *rule)


def test_a_chunk_ends_at_a_token_with_a_blank_line() -> None:
    pieces = [b"a", b".\n\n", b"b", b"\n", b"\n", b"\n\n\n", b"\n\nc", b"d"]
    assert [tuple(c) for c in chunks(pieces)] == [(0, 2), (2, 6), (6, 7)]
    assert [c.tokens for c in chunks(pieces)] == [2, 4, 1]
    assert chunks([]) == []
    assert chunks([b"no blank line\n", b"\nat all"]) == []
