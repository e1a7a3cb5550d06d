"""LZ77 as the Less-is-Less paper explains it (Appendix A): to read and test against, not fast.

A search buffer holds the last symbols, zero-filled at the start, a look-ahead buffer the next ones.
Each step finds the longest start of the look-ahead buffer that also begins in the search buffer,
where it may run on into the look-ahead buffer, and writes a triple (p, l, c): offset in the search
buffer, leftmost among equals; length, 0 without a match and then p = 0; the symbol that follows.
Both buffers then move on by l + 1.

The paper's second step prints 40040042 as the look-ahead buffer; its input gives 00400423, from
which its triple (5, 6, 2) follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from attention.errors import InvalidValue
from lil.compression.codecs import Codec, Symbols

SEARCH = 1024
AHEAD = 64


class Triple(NamedTuple):
    """Offset in the search buffer, length of the match, the symbol after it."""

    p: int
    l: int  # noqa: E741 - the paper's name
    c: int


def next_triple(history: Sequence[int], ahead: Sequence[int], search: int) -> Triple:
    """The triple at the start of a non-empty look-ahead buffer, given the symbols before it."""
    seen = [0] * (search - len(history)) + list(history[-search:])
    both = [*seen, *ahead]
    best_p, best_l = 0, 0
    for p in range(search):
        length = 0
        # The last symbol in sight is never matched: a triple ends with a symbol of its own.
        while length < len(ahead) - 1 and both[p + length] == ahead[length]:
            length += 1
        if length > best_l:
            best_p, best_l = p, length
    return Triple(best_p, best_l, ahead[best_l])


def codeword(search: int, ahead: int, alphabet: int) -> int:
    """Length L_c of a codeword in symbols (Appendix B): p and l as numbers to base |A|, and c."""
    for name, value in (("search", search), ("ahead", ahead)):
        if value < 1:
            raise InvalidValue(name, value, "at least 1 symbol")
    if alphabet < 2:
        raise InvalidValue("alphabet", alphabet, "at least 2 symbols")
    return _digits(ahead, alphabet) + _digits(search, alphabet) + 1


def _digits(count: int, alphabet: int) -> int:
    """ceil(log_|A| count), in whole numbers: logarithms would round."""
    digits, reach = 0, 1
    while reach < count:
        digits, reach = digits + 1, reach * alphabet
    return digits


class LZ77(Codec):
    """LZ77 as the Less-is-Less paper explains it (Appendix A): to read and test against, not fast.

    A triple is final once its look-ahead buffer was full; a reading codes the tail again.
    """

    name: ClassVar[str] = "lz77"

    def __init__(self, symbols: Symbols) -> None:
        self._width = symbols.width
        # A number takes as many whole symbols as it needs of `width` bytes each.
        self._codeword_bytes = symbols.width * codeword(SEARCH, AHEAD, 256**symbols.width)
        self._rest: list[int] = []
        self._history: list[int] = []
        self._final = 0
        self._partial = b""

    def feed(self, data: bytes) -> None:
        data = self._partial + data
        whole = len(data) - len(data) % self._width
        self._partial = data[whole:]
        self._rest += np.frombuffer(data[:whole], dtype=f"<u{self._width}").tolist()
        at = 0
        while len(self._rest) - at >= AHEAD:
            triple = next_triple(self._history, self._rest[at : at + AHEAD], SEARCH)
            self._final += 1
            end = at + triple.l + 1
            self._history = (self._history + self._rest[at:end])[-SEARCH:]
            at = end
        del self._rest[:at]

    def size(self) -> int:
        count, history, at = self._final, list(self._history), 0
        while at < len(self._rest):
            triple = next_triple(history[-SEARCH:], self._rest[at : at + AHEAD], SEARCH)
            count += 1
            history += self._rest[at : at + triple.l + 1]
            at += triple.l + 1
        return count * self._codeword_bytes
