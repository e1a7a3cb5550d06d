"""The detectors that look at tokens alone, and the parameters of all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lil
from attention.errors import InvalidValue
from lil import detectors


def naive_cycle(
    pieces: list[bytes], low: int, high: int, longest: int, repeats: int, least: int
) -> tuple[int, int] | None:
    """(tokens, period) of the first tail that is a block repeated, by comparing slices."""
    for n in range(1, len(pieces) + 1):
        for p in range(low, max(high, longest) + 1):
            # The run of period p at the end of the first n tokens, whole blocks or not.
            length = p
            while length < n and pieces[n - length - 1] == pieces[n - length - 1 + p]:
                length += 1
            if length >= max(p * (repeats if p <= high else max(repeats, 3)), least, 2 * p):
                return n, p
    return None


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=30),
    st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=7),
    st.integers(0, 40),
    st.tuples(*(st.integers(*ends) for ends in ((1, 4), (0, 5), (0, 9), (2, 5), (0, 30)))),
)
def test_cycle_is_what_slices_say(
    head: list[bytes], block: list[bytes], tail: int, numbers: tuple[int, ...]
) -> None:
    low, more, longest, repeats, least = numbers
    pieces = head + (block * 40)[:tail]
    most = low + more
    cycle = lil.Cycle(low, most, repeats, least, outside=0, long_period=longest)
    verdict = cycle.watch().update(pieces)
    expected = naive_cycle(pieces, low, most, longest, repeats, least)
    assert (verdict is None) == (expected is None)
    if verdict is not None:
        evidence = verdict.evidence
        assert (verdict.token, evidence["period"]) == expected
        first, period = evidence["first_token"], evidence["period"]
        assert all(pieces[i] == pieces[i - period] for i in range(first + period, verdict.token))
        assert evidence["repeats"] >= repeats


def naive_recurrence(pieces: list[bytes], k: int, before: int, run: int) -> int | None:
    """Tokens when `run` in a row each end a k-gram that ended `before` times earlier."""
    grams = [tuple(pieces[i - k : i]) if i >= k else None for i in range(1, len(pieces) + 1)]
    often = [g is not None and grams[:i].count(g) >= before for i, g in enumerate(grams)]
    ends = (n for n in range(run, len(pieces) + 1) if all(often[n - run : n]))
    return next(ends, None)


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", b""]), max_size=90),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 6),
)
def test_recurrence_is_what_counting_says(
    pieces: list[bytes], k: int, before: int, run: int
) -> None:
    recurrence = lil.Recurrence(k=k, before=before, run=run, outside=0)
    verdict = recurrence.watch().update(pieces)
    assert (None if verdict is None else verdict.token) == naive_recurrence(pieces, k, before, run)
    if verdict is not None:
        assert verdict.evidence["first_token"] == verdict.token - run
        assert verdict.evidence["times_before"] >= before


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("cycle", {"min_period": 0}, "min_period = 0"),
        ("cycle", {"min_period": 9, "max_period": 8}, "max_period = 8"),
        ("cycle", {"repeats": 1}, "repeats = 1"),
        ("cycle", {"min_tokens": -1}, "min_tokens = -1"),
        ("stall", {"longest": 0}, "longest = 0"),
        ("stall", {"drift": 1}, "drift = 1.*below 1"),
        ("stall", {"level": 0}, "level = 0.*above 0"),
        ("stall", {"block": 1.5}, "block = 1.5.*integer"),
        ("margin", {"below": -1}, "below = -1.*at least 0"),
        ("margin", {"end": ""}, "end = ''"),
        ("recurrence", {"k": 0}, "k = 0"),
        ("recurrence", {"on_stop": "regenerate"}, "does not know where to go back"),
        ("budget", {"tokens": 0}, "tokens = 0"),
        ("budget", {"tokens": True}, "tokens = True.*integer"),
        ("budgett", {}, "did you mean 'budget'"),
        ("guardian", {"f": "ten"}, "f = 'ten'.*integer"),
        ("guardian", {"rate": "0.1"}, "rate = '0.1'.*number"),
        ("guardian", {"t": 0}, "t = 0.*number"),
        ("guardian", {"rate": float("nan")}, "rate = nan"),
        ("guardian", {"codec": "deflat"}, "did you mean 'deflate'"),
        ("guardian", {"f": 100, "rate": 0.08, "t": 20}, "t = 20: expected rate . f = 8"),
    ],
)
def test_bad_values(name: str, params: dict, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        detectors.get(name, **params)
