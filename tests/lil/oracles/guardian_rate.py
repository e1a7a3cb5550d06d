"""Oracle of Guardian: everything is compressed from scratch at every check."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Stop:
    """Why the generation ends: generated tokens so far, and sizes in bytes at the last checks."""

    token: int
    before: float
    after: float


def deflate(data: bytes) -> int:
    """Bytes after zlib, level 6."""
    return len(zlib.compress(data, 6))


def first_stop(
    prompt: bytes,
    pieces: Sequence[bytes],
    *,
    f: int = 250,
    rate: str = "0.08",
    size: Callable[[bytes], float] = deflate,
) -> Stop | None:
    """The first check, after f, 2f, ... tokens, at which the size grew by less than rate * f.

    Args:
        prompt: bytes of the prompt, the first thing compared with.
        pieces: bytes of each generated token.
        f: generated tokens between checks.
        rate: bytes a token, as a decimal number: a text is exact where a float is not.
        size: compressed bytes of a text.
    """
    before = size(prompt)
    for token in range(f, len(pieces) + 1, f):
        after = size(prompt + b"".join(pieces[:token]))
        if Fraction(after) - Fraction(before) < Fraction(rate) * f:
            return Stop(token, before, after)
        before = after
    return None
