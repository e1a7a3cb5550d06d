"""Compression curves (the paper's Fig. 3), and what a compression ratio says of entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attention.errors import InvalidValue, check_int
from lil.compression.meter import Meter

Point = tuple[int | None, int, int]
"""(tokens, original bytes, compressed bytes); tokens is None for a plain text."""


def curve(source: str | bytes, every_bytes: int = 1000, codec: str = "deflate") -> list[Point]:
    """Compression curve of a text: one point every `every_bytes` bytes and one at its end.

    Text is measured as UTF-8.

    Raises:
        InvalidValue: no text, `every_bytes` below 1, or an unknown codec.
    """
    value: object = source
    if not isinstance(value, (str, bytes, bytearray)):
        raise InvalidValue("source", value, "a text, or bytes")
    check_int("every_bytes", every_bytes, 1)
    data = source.encode() if isinstance(source, str) else source
    meter = Meter(codec)
    points: list[Point] = []
    for start in range(0, len(data), every_bytes):
        meter.feed(data[start : start + every_bytes])
        points.append((None, meter.fed, meter.size()))
    return points


def token_curve(
    pieces: Sequence[bytes], every_tokens: int = 50, codec: str = "deflate"
) -> list[Point]:
    """Compression curve of a sequence of tokens, from each token's bytes.

    One point after every `every_tokens` tokens and one at the end; `Trace.curve` is this of the
    output alone.

    Raises:
        InvalidValue: `every_tokens` below 1, or an unknown codec.
    """
    check_int("every_tokens", every_tokens, 1)
    meter = Meter(codec)
    points: list[Point] = []
    for start in range(0, len(pieces), every_tokens):
        part = pieces[start : start + every_tokens]
        meter.feed(b"".join(part))
        points.append((start + len(part), meter.fed, meter.size()))
    return points


def entropy_bounds(ratio: float, lookahead: int, alphabet: int = 256) -> tuple[float, float]:
    """Least and greatest entropy of a source whose text LZ77 compresses to `ratio`.

    "Lil: Less is Less", eq. 2 and Appendix B: ratio - eps(Ls) <= h(Ls - 1) <= ratio with eps(Ls) =
    (3 + 3 log(Ls - 1) + log(Ls / 2)) / (Ls - 1). Logarithms are to base |A|; times log2 |A| it is
    bits per symbol. It holds for fixed-length codewords, as in the codec `lz77`; a ratio of deflate
    or zstd is no bound. At short look-ahead buffers the lower bound is negative.

    Args:
        ratio: rho, compressed length / original length, both in symbols.
        lookahead: Ls, length of the look-ahead buffer in symbols.
        alphabet: |A|, number of different symbols.

    Raises:
        InvalidValue: a negative ratio, `lookahead` or `alphabet` below 2.
    """
    if not 0 <= ratio < math.inf:
        raise InvalidValue("ratio", ratio, "compressed / original length, 0 or above")
    if lookahead < 2:
        raise InvalidValue("lookahead", lookahead, "at least 2 symbols")
    if alphabet < 2:
        raise InvalidValue("alphabet", alphabet, "at least 2 symbols")
    logs = 3 * math.log(lookahead - 1, alphabet) + math.log(lookahead / 2, alphabet)
    return ratio - (3 + logs) / (lookahead - 1), ratio
