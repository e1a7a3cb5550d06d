"""Every codec's size is that of the whole, compressed from scratch, however it came in pieces."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence

import pytest
import zstandard

import lil.compression.codecs.lz77
import lil.compression.codecs.lzss_bits
from lil import Meter
from lil.compression import codecs
from tests.lil.oracles import lz77, lzss_bits
from tests.lil.oracles.streams import stream


def digits(count: int, alphabet: int) -> int:
    """Symbols that distinguish `count` numbers."""
    return next(k for k in range(count + 1) if alphabet**k >= count)


def from_scratch(codec: str, symbols: Sequence[int], width: int, vocabulary: int) -> int:
    """Bytes of the symbols, `width` bytes each, by the codec's definition."""
    data = b"".join(symbol.to_bytes(width, "little") for symbol in symbols)
    if codec == "deflate":
        return len(zlib.compress(data, 6))
    if codec == "zstd":
        return len(zstandard.ZstdCompressor(level=3).compress(data))
    if codec == "lz77":
        search, ahead = codecs.lz77.SEARCH, codecs.lz77.AHEAD
        triples = lz77.encode(symbols, search=search, ahead=ahead, fill=0)
        numbers = digits(search, 256**width) + digits(ahead, 256**width)
        return len(triples) * (numbers + 1) * width
    window, longest = codecs.lzss_bits.WINDOW, codecs.lzss_bits.LONGEST
    parsed = lzss_bits.parse(symbols, window=window, longest=longest)
    return math.ceil(lzss_bits.bits(parsed, vocabulary) / 8 - 1e-9)


def check_one(codec: str, rng: random.Random, longest: int) -> None:
    """One text in random pieces, read after some of them."""
    width = rng.choice((1, 4))
    V = rng.choice((2, 5, 40, 256)) if width == 1 else rng.choice((5, 1000, 70_000))
    symbols = stream(rng, V, rng.randint(0, longest))
    if width == 1:
        meter, vocabulary = Meter(codec), 256
    else:
        meter, vocabulary = Meter(codec, unit="tokens", vocabulary=V), V
    most = rng.choice((3, 20, longest))
    often = 5 * most / max(len(symbols), 1)  # about ten readings
    at = 0
    while at < len(symbols):
        piece = symbols[at : at + rng.randint(0, most)]
        meter.feed(bytes(piece) if width == 1 else piece)
        at += len(piece)
        if at == len(symbols) or rng.random() < often:
            assert meter.size() == from_scratch(codec, symbols[:at], width, vocabulary)
    assert meter.fed == width * len(symbols)
    assert meter.size() == from_scratch(codec, symbols, width, vocabulary)


SHORT = {"lz77.SEARCH": 50, "lz77.AHEAD": 12, "lzss_bits.WINDOW": 50, "lzss_bits.LONGEST": 12}


@pytest.fixture
def short_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that texts outgrow them; deflate's and zstd's cannot be set."""
    for name, size in SHORT.items():
        monkeypatch.setattr(f"lil.compression.codecs.{name}", size)


@pytest.mark.parametrize("codec", codecs.names())
def test_size_is_that_of_the_whole(codec: str):
    rng = random.Random(f"{codec} 1")
    for _ in range(8):
        check_one(codec, rng, 400)


@pytest.mark.usefixtures("short_buffers")
@pytest.mark.parametrize("codec", codecs.names())
def test_size_is_that_of_the_whole_beyond_the_buffers(codec: str):
    rng = random.Random(f"{codec} 2")
    for _ in range(30):
        check_one(codec, rng, 150)


@pytest.mark.parametrize(
    ("search", "ahead", "alphabet", "symbols"),
    [(8, 8, 256, 3), (256, 256, 256, 3), (257, 256, 256, 4), (8, 8, 2, 7), (1000, 10, 10, 5)],
)
def test_codewords_have_the_papers_fixed_length(search, ahead, alphabet, symbols):
    assert lil.compression.codecs.lz77.codeword(search, ahead, alphabet) == symbols


def test_matches_leave_the_window_of_deflate():
    """Texts longer than its 32 KiB, in pieces of many sizes."""
    rng = random.Random(3)
    text = rng.randbytes(300) * 400 + rng.randbytes(2000)
    meter, at = Meter(), 0
    while at < len(text):
        piece = text[at : at + rng.choice((1, 700, 30_000))]
        at += len(piece)
        assert meter.feed(piece).size() == len(zlib.compress(text[:at], 6))
