"""Curves: points where promised, sizes by zlib; the entropy bound by hand."""

from __future__ import annotations

import math
import zlib

import pytest

from attention.errors import InvalidValue
from lil import curve, token_curve
from lil.compression.curves import entropy_bounds

TEXT = "Anna has 3 apples. Bob has twice as many: é ñ ü, and so on. " * 40


@pytest.mark.parametrize("every", [1, 7, 100, 10**6])
def test_a_text_has_a_point_every_so_many_bytes_and_one_at_its_end(every: int):
    text = TEXT[:300] if every == 1 else TEXT
    data = text.encode()
    ends = [*range(every, len(data), every), len(data)]
    expected = [(None, end, len(zlib.compress(data[:end], 6))) for end in ends]
    assert curve(text, every_bytes=every) == expected
    assert curve(data, every_bytes=every) == expected


@pytest.mark.parametrize("count", [1, 9, 10, 11, 20])
def test_a_sequence_of_tokens_has_its_points_at_tokens(count: int):
    pieces = [f" word{i}".encode() for i in range(count)]
    ends = [*range(10, count, 10), count]
    joined = [b"".join(pieces[:end]) for end in ends]
    expected = [
        (end, len(text), len(zlib.compress(text, 6)))
        for end, text in zip(ends, joined, strict=True)
    ]
    assert token_curve(pieces, every_tokens=10) == expected


def test_nothing_has_no_points_and_steps_below_one_are_refused():
    assert curve("") == token_curve([]) == []
    with pytest.raises(InvalidValue, match="every_bytes = 0"):
        curve("text", every_bytes=0)
    with pytest.raises(InvalidValue, match="every_tokens = -1"):
        token_curve([b"text"], every_tokens=-1)


def test_entropy_bound_by_hand():
    """|A| = 2, Ls = 9: eps = (3 + 3 * 3 + log2 4.5) / 8."""
    low, high = entropy_bounds(0.9, lookahead=9, alphabet=2)
    assert high == 0.9
    assert low == pytest.approx(0.9 - (12 + math.log2(4.5)) / 8)
    low, _ = entropy_bounds(0.5, lookahead=2**20, alphabet=256)
    assert low == pytest.approx(0.5 - (3 + 3 * 2.5 + 19 / 8) / (2**20 - 1), abs=1e-9)


@pytest.mark.parametrize(
    "arguments", [(-0.1, 9, 2), (0.5, 1, 2), (0.5, 9, 1), (math.nan, 9, 2), (math.inf, 9, 2)]
)
def test_entropy_of_nonsense_is_refused(arguments):
    with pytest.raises(InvalidValue):
        entropy_bounds(*arguments)
