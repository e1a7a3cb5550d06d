"""Compression curves: compressed against original bytes while a sequence grows (paper's Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence

from attention.errors import InvalidValue, check_int
from lil.compression.meter import Meter

Point = tuple[int | None, int, int]
"""(tokens, original bytes, compressed bytes); tokens is None for a plain text."""


def curve(source: str | bytes, every_bytes: int = 1000, codec: str = "deflate") -> list[Point]:
    """Compression curve of a text: one point every `every_bytes` bytes and one at its end.

    Text is measured as UTF-8. Divide the last two numbers of a point for the compression ratio so
    far. A sequence of tokens has its checks at tokens instead: see `token_curve`.

    Raises:
        InvalidValue: no text, `every_bytes` below 1, or an unknown codec.
    """
    given: object = source
    if not isinstance(given, (str, bytes, bytearray)):
        raise InvalidValue("source", given, "a text, or bytes")
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
    """Compression curve of a sequence of tokens, given each token's bytes.

    One point after every `every_tokens` tokens and one at the end. `Trace.curve` is this of the
    output alone; use it to see a stored trace with another codec or step.

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
