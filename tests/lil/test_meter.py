"""A meter's size is what zlib gives from scratch, whatever the chunks; snapshots are exact."""

from __future__ import annotations

import zlib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lil import Meter

# Long enough for several deflate blocks and for matches to leave the 32 KiB window.
texts = st.builds(
    lambda unit, times, tail: unit * times + tail,
    st.binary(min_size=1, max_size=300),
    st.integers(1, 400),
    st.binary(max_size=2000),
)
cuts = st.lists(st.integers(1, 30_000), min_size=1, max_size=12)


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in pieces of `sizes`, over and over."""
    parts, start, turn = [], 0, 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        parts.append(data[start : start + size])
        start, turn = start + size, turn + 1
    return parts


def zlib_size(data: bytes) -> int:
    return len(zlib.compress(data, 6))


@given(texts, cuts)
@example(b"", [1])
@example(bytes(range(256)) * 300, [1, 65_536])
@settings(max_examples=60, deadline=None, derandomize=True)
def test_size_equals_compressing_from_scratch_at_every_reading(data: bytes, sizes: list[int]):
    meter, seen = Meter(), b""
    assert meter.size() == zlib_size(b"")
    parts = chunks(data, sizes)
    for number, part in enumerate(parts):
        meter.feed(part)
        seen += part
        if number % max(1, len(parts) // 20) == 0 or number == len(parts) - 1:
            assert (meter.fed, meter.size()) == (len(seen), zlib_size(seen))
    assert seen == data


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.binary(max_size=5000))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rollback_undoes_feeding_as_often_as_asked(before: bytes, wrong: bytes, after: bytes):
    meter = Meter().feed(before)
    snapshot = meter.snapshot()
    for _ in range(2):
        meter.feed(wrong).size()
        meter.rollback(snapshot)
        assert (meter.fed, meter.size()) == (len(before), zlib_size(before))
    assert meter.feed(after).size() == zlib_size(before + after)
