"""Oracle of Guardian: everything is compressed from scratch at every check."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Stop:
    """Why the generation ends: generated tokens so far, and sizes in bytes at the last checks."""

    token: int
    before: float
    after: float


def first_stop(prompt: bytes, pieces: Sequence[bytes], *, f: int, rate: str) -> Stop | None:
    """The first check, after f, 2f, ... tokens, at which the size grew by less than rate * f.

    `rate` is a decimal number in text, exact where a float is not.
    """
    before = len(zlib.compress(prompt, 6))
    for token in range(f, len(pieces) + 1, f):
        after = len(zlib.compress(prompt + b"".join(pieces[:token]), 6))
        if Fraction(after) - Fraction(before) < Fraction(rate) * f:
            return Stop(token, before, after)
        before = after
    return None
