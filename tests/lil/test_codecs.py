"""Codecs beside deflate, and the unit of a meter."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lil import Meter
from lil.compression.codecs import lz77
from tests.lil.oracles import lz77 as oracle

few = st.lists(st.integers(0, 3), max_size=120)


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
