"""LZSS code length of a sequence of symbols, as the LZ penalty charges it.

A match of l symbols at distance d costs log2 d + log2 l + 1 bits, a literal log2 V + 1 (arXiv
2504.20131, propositions 1 and 2). The parse is greedy: the longest match at each place, the nearest
of equal ones. As in LZ77 and unlike there a match may run on into itself.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch

from attention.errors import InvalidValue
from lil.compression.codecs import Codec, Symbols
from lil.compression.matching import Matcher

WINDOW = 512
LONGEST = 32


class LZSSBits(Codec):
    """LZSS code length of a sequence of symbols: what the LZ penalty charges for, counted."""

    name: ClassVar[str] = "lzss_bits"

    def __init__(self, symbols: Symbols) -> None:
        if symbols.alphabet is None:
            raise InvalidValue("vocabulary", None, "the number of token ids: literals cost log2 V")
        self._width = symbols.width
        self._literal = math.log2(symbols.alphabet) + 1
        self._ring = Matcher(1, WINDOW + 1, LONGEST)
        self._bits = 0.0
        self._length = self._distance = 0  # of the phrase under way
        self._partial = b""

    def feed(self, data: bytes) -> None:
        data = self._partial + data
        whole = len(data) - len(data) % self._width
        self._partial = data[whole:]
        symbols = np.frombuffer(data[:whole], dtype=f"<u{self._width}").astype(np.int64)
        for symbol in torch.from_numpy(symbols)[:, None]:
            self._ring.push(symbol)
            self._take()

    def _take(self) -> None:
        """Count the ring's newest symbol."""
        if not self._extend() and self._length:
            self._close()
            self._extend()  # the symbol that ended a phrase begins the next
        if not self._length:
            self._bits += self._literal
        elif self._length == LONGEST:
            self._close()

    def _extend(self) -> bool:
        """Take the newest symbol into the phrase under way if the window holds both."""
        window = self._ring.lengths[0, :-1]
        matches = (window > self._length).nonzero()
        if not len(matches):
            return False
        self._length, self._distance = self._length + 1, len(window) - int(matches[-1])
        return True

    def _close(self) -> None:
        self._bits += self._match()
        self._length = 0

    def _match(self) -> float:
        return math.log2(self._distance) + math.log2(self._length) + 1

    def bits(self) -> float:
        """Code length of everything fed so far, in bits."""
        return self._bits + (self._match() if self._length else 0.0)

    def size(self) -> int:
        return math.ceil(self.bits() / 8)
