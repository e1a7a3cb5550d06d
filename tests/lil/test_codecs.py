"""Codecs beside deflate, and the unit of a meter."""

from __future__ import annotations

import math
import random
from typing import ClassVar

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil import Meter, curve
from lil.compression import codecs
from lil.compression.codecs import lz77, lzss_bits

few = st.lists(st.integers(0, 3), max_size=120)
splits = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def in_pieces(data, sizes: list[int]) -> list:
    parts, at, turn = [], 0, 0
    while at < len(data):
        parts.append(data[at : at + sizes[turn % len(sizes)]])
        at, turn = at + len(parts[-1]), turn + 1
    return parts


def test_all_codecs_of_the_specification_are_there():
    assert codecs.names() == ["deflate", "lz77", "lzss_bits", "zstd"]


# LZ77, Appendix A


def test_the_papers_example():
    text = [int(c) for c in "0040040042304237"]
    triples = lz77.encode(text, search=8, ahead=8)
    assert triples == [(0, 2, 4), (5, 6, 2), (0, 0, 3), (4, 4, 7)]
    assert lz77.decode(triples, search=8) == text


@given(few, st.integers(1, 20), st.integers(1, 20))
@example([0], 1, 1)
@example([0] * 50, 1, 3)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_decoding_inverts_encoding(text: list[int], search: int, ahead: int):
    triples = lz77.encode(text, search, ahead)
    assert lz77.decode(triples, search) == text
    assert all(0 <= p < search and 0 <= length < ahead for p, length, _ in triples)
    assert sum(length + 1 for _, length, _ in triples) == len(text)


@given(few, st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_match_is_the_longest_and_leftmost(text: list[int], search: int, ahead: int):
    at = 0
    for p, length, _ in lz77.encode(text, search, ahead):
        padded = [0] * search + text
        room = min(ahead, len(text) - at) - 1
        fits = [
            (k, -q)
            for q in range(search)
            for k in range(room + 1)
            if padded[at + q : at + q + k] == text[at : at + k]
        ]
        k, q = max(fits)
        assert (length, p) == (k, -q if k else 0)
        at += length + 1


@pytest.mark.parametrize(
    ("search", "ahead", "alphabet", "symbols"),
    [(8, 8, 256, 3), (256, 256, 256, 3), (257, 256, 256, 4), (8, 8, 2, 7), (1000, 10, 10, 5)],
)
def test_codewords_have_the_papers_fixed_length(search, ahead, alphabet, symbols):
    assert lz77.codeword(search, ahead, alphabet) == symbols


def test_lz77_meter_counts_codewords_of_the_whole_text():
    data = (b"the cat sat. " * 9 + bytes(range(90))) * 2
    triples = lz77.encode(list(data))
    assert Meter("lz77").feed(data).size() == 4 * len(triples)


# zstd


def test_zstd_is_read_from_scratch_and_sees_beyond_deflates_window():
    block = random.Random(3).randbytes(50_000)
    meter = Meter("zstd").feed(block)
    first = meter.size()
    assert first == len(zstandard.ZstdCompressor(level=3).compress(block))
    assert meter.feed(block).size() - first < 100
    assert Meter("deflate").feed(block * 2).size() > 99_000


# LZSS


def test_code_length_by_hand():
    """1 2 | 1 2 1 at distance 2 and length 3, running on into itself | 3."""
    meter = Meter("lzss_bits", unit="tokens", vocabulary=16)
    codec = meter._state
    assert isinstance(codec, lzss_bits.LZSSBits)
    assert codec.bits() == 0
    meter.feed([1, 2])
    assert codec.bits() == 2 * (4 + 1)
    meter.feed([1])
    assert codec.bits() == 10 + (1 + 0 + 1)
    meter.feed([2, 1])
    assert codec.bits() == pytest.approx(10 + 1 + math.log2(3) + 1)
    meter.feed([3])
    assert codec.bits() == pytest.approx(10 + 1 + math.log2(3) + 1 + 5)
    assert meter.size() == math.ceil((17 + math.log2(3)) / 8)


def greedy(text: list[int], V: int) -> float:
    """Every place, every distance, the longest match and the nearest."""
    bits, at = 0.0, 0
    while at < len(text):
        length, distance = 0, 0
        for d in range(1, min(at, lzss_bits.WINDOW) + 1):
            k = 0
            while k < lzss_bits.LONGEST and at + k < len(text) and text[at + k] == text[at + k - d]:
                k += 1
            if k > length:
                length, distance = k, d
        bits += math.log2(distance) + math.log2(length) + 1 if length else math.log2(V) + 1
        at += max(1, length)
    return bits


@given(few, st.integers(0, 3), splits)
@example([0] * 100, 0, [1])
@example([3] * 33, 0, [33])
@settings(max_examples=100, deadline=None, derandomize=True)
def test_code_length_equals_the_greedy_parse(text: list[int], loops: int, sizes: list[int]):
    text = text * (1 + loops)
    meter = Meter("lzss_bits", unit="tokens", vocabulary=50)
    for piece in in_pieces(text, sizes):
        meter.feed(piece)
    assert meter._state.bits() == pytest.approx(greedy(text, 50))


def test_the_window_forgets():
    fresh = [*range(1, 700), 1]
    assert greedy(fresh, 1000) == pytest.approx(700 * (math.log2(1000) + 1))
    meter = Meter("lzss_bits", unit="tokens", vocabulary=1000).feed(fresh)
    assert meter._state.bits() == pytest.approx(greedy(fresh, 1000))
    for back in (511, 512, 513):
        text = [*range(1, 700), 700 - back]
        meter = Meter("lzss_bits", unit="tokens", vocabulary=1000).feed(text)
        assert meter._state.bits() == pytest.approx(greedy(text, 1000))


# All, and the unit


@pytest.mark.parametrize("codec", ["lz77", "lzss_bits", "zstd"])
@pytest.mark.parametrize("unit", ["bytes", "tokens"])
@given(st.data())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_size_knows_no_pieces_and_rollback_is_exact(codec: str, unit: str, data):
    vocabulary = 70_000 if unit == "tokens" else None
    symbols = st.integers(0, 255 if unit == "bytes" else 69_999)
    kind = bytes if unit == "bytes" else list
    text = kind(data.draw(st.lists(symbols, max_size=60))) * data.draw(st.integers(1, 3))
    wrong = kind(data.draw(st.lists(symbols, max_size=90)))

    def meter() -> Meter:
        return Meter(codec, unit=unit, vocabulary=vocabulary)

    whole, grown = meter().feed(text).size(), meter()
    for piece in in_pieces(text, data.draw(splits)):
        held = grown.snapshot()
        grown.feed(wrong).size()
        grown.rollback(held)
        grown.feed(piece).size()
    assert grown.size() == whole
    assert grown.fed == len(text) * (1 if unit == "bytes" else 4)
    grown.reset()
    assert (grown.fed, grown.size()) == (0, meter().size())


def test_token_ids_count_as_uint32():
    ids = [1, 300, 70_000, 2**32 - 1]
    raw = b"".join(i.to_bytes(4, "little") for i in ids)
    for codec in ("deflate", "zstd"):
        assert Meter(codec, unit="tokens").feed(ids).size() == Meter(codec).feed(raw).size()
    assert Meter(unit="tokens").feed(ids).fed == 16


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({"unit": "words"}, b"", "unit = 'words'.*one of bytes, tokens"),
        ({"vocabulary": 9}, b"", "vocabulary = 9"),
        ({"unit": "tokens", "vocabulary": 1}, [], "vocabulary = 1"),
        ({"unit": "tokens", "codec": "lzss_bits"}, [], "vocabulary = None"),
        ({"unit": "tokens"}, b"abc", "a sequence of token ids"),
        ({}, [1, 2], "expected bytes"),
        ({"unit": "tokens"}, [1, -1], "data = -1"),
        ({"unit": "tokens"}, [2**32], "data = 4294967296"),
        ({"unit": "tokens", "vocabulary": 50}, [50], "data = 50: .* 0 to 49"),
    ],
)
def test_wrong_units_are_refused(options, data, message):
    with pytest.raises(InvalidValue, match=message):
        Meter(**options).feed(data)


def test_bad_buffers_and_triples_are_refused():
    with pytest.raises(InvalidValue, match="search = 0"):
        lz77.encode([1], search=0)
    with pytest.raises(InvalidValue, match="ahead = 0"):
        lz77.encode([1], ahead=0)
    with pytest.raises(InvalidValue, match="triple"):
        lz77.decode([(8, 1, 1)], search=8)
    with pytest.raises(InvalidValue, match="alphabet = 1"):
        lz77.codeword(8, 8, 1)


@pytest.mark.parametrize("codec", ["lz77", "lzss_bits", "zstd"])
def test_a_loop_is_cheaper_than_fresh_text(codec: str):
    fresh = random.Random(1).randbytes(2000)
    loop = fresh[:100] * 20
    sizes = [curve(text, every_bytes=500, codec=codec)[-1][2] for text in (loop, fresh)]
    assert sizes[0] < 0.3 * sizes[1]


class Doubled(codecs.Codec):
    """Every byte twice."""

    name: ClassVar[str] = "doubled"

    def __init__(self, symbols: codecs.Symbols) -> None:
        del symbols
        self.fed = 0

    def feed(self, data: bytes) -> None:
        self.fed += len(data)

    def size(self) -> int:
        return 2 * self.fed

    def copy(self) -> Doubled:
        twin = Doubled(codecs.TEXT)
        twin.fed = self.fed
        return twin


def test_a_codec_of_another_package_by_its_path():
    meter = Meter(codec=f"{__name__}:Doubled").feed(b"abc")
    assert meter.size() == 6
    with pytest.raises(InvalidValue, match="did you mean 'deflate'"):
        Meter(codec="deflat")
    with pytest.raises(InvalidValue, match=r"a subclass of lil\.Codec"):
        Meter(codec="json:JSONDecoder")
