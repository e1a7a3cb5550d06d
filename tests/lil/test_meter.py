"""A meter's size is what zlib gives from scratch, whatever the chunks; snapshots are exact."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil import Meter
from lil.compression import codecs
from lil.compression.codecs import deflate
from lil.compression.codecs._scratch import FromScratch

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
    held = meter.snapshot()
    for _ in range(2):
        meter.feed(wrong).size()
        meter.rollback(held)
        assert (meter.fed, meter.size()) == (len(before), zlib_size(before))
    assert meter.feed(after).size() == zlib_size(before + after)


def test_reset_is_as_new():
    meter = Meter().feed(b"some text " * 50)
    meter.reset()
    assert (meter.fed, meter.size()) == (0, zlib_size(b""))
    assert meter.feed(b"abc").size() == zlib_size(b"abc")


def test_a_build_that_is_not_exact_is_compressed_from_scratch(monkeypatch: pytest.MonkeyPatch):
    """A zlib whose incremental size is off by one is noticed, and the meter stays right."""

    class Off(deflate.Stream):
        def size(self) -> int:
            return super().size() + 1

    monkeypatch.setattr(deflate, "Stream", Off)
    deflate.incremental_is_exact.cache_clear()
    try:
        assert not deflate.incremental_is_exact()
        meter = Meter().feed(b"fresh text").feed(b" and more")
        assert meter.size() == zlib_size(b"fresh text and more")
        held = meter.snapshot()
        meter.feed(b"!" * 99)
        meter.rollback(held)
        assert meter.size() == zlib_size(b"fresh text and more")
        assert isinstance(codecs.new("deflate")._state, FromScratch)
    finally:
        deflate.incremental_is_exact.cache_clear()


def test_zlib_itself_is_read_incrementally():
    if "ng" in zlib.ZLIB_RUNTIME_VERSION:
        pytest.skip("zlib-ng may choose its matches by how it is fed")
    assert deflate.incremental_is_exact()
    assert isinstance(codecs.new("deflate")._state, deflate.Stream)


def test_unknown_codec_names_the_nearest():
    with pytest.raises(InvalidValue, match="did you mean 'deflate'"):
        Meter("deflat")
    assert "deflate" in codecs.names()
