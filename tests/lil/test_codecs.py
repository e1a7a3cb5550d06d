"""Codecs beside deflate, and the unit of a meter."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil import Meter
from lil.compression import codecs
from lil.compression.codecs import lz77
from tests.lil.oracles import lz77 as oracle

few = st.lists(st.integers(0, 3), max_size=120)


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
def test_triples_are_those_of_the_definition_and_give_the_text_back(
    text: list[int], search: int, ahead: int
):
    triples = lz77.encode(text, search, ahead)
    assert triples == oracle.encode(text, search=search, ahead=ahead, fill=0)
    assert lz77.decode(triples, search) == text


@pytest.mark.parametrize(
    ("search", "ahead", "alphabet", "symbols"),
    [(8, 8, 256, 3), (256, 256, 256, 3), (257, 256, 256, 4), (8, 8, 2, 7), (1000, 10, 10, 5)],
)
def test_codewords_have_the_papers_fixed_length(search, ahead, alphabet, symbols):
    assert lz77.codeword(search, ahead, alphabet) == symbols


# All, and the unit


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
