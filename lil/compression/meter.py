"""How many bytes is everything so far, compressed?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attention.errors import InvalidValue
from lil.compression import codecs

UNITS = ("bytes", "tokens")


class Meter:
    """Compressed size of one sequence, fed piece by piece and read at any time.

    The size is the same however the sequence was cut into pieces. Of text feed each token's own
    bytes (`token_bytes`), not `decode(ids)`: decoding is not prefix-stable.

    Args:
        codec: the compressor, by name (`lil.codecs.names()`) or `module:Class`.
        unit: "bytes" of text, or "tokens": ids that count as uint32, 4 bytes each.
        vocabulary: V, for token ids; `lzss_bits` needs it.

    Raises:
        InvalidValue: unknown codec or unit, a vocabulary below 2 or for text, or none where the
            codec needs it.
    """

    def __init__(
        self, codec: str = "deflate", unit: str = "bytes", vocabulary: int | None = None
    ) -> None:
        if unit not in UNITS:
            raise InvalidValue("unit", unit, "one of " + ", ".join(UNITS), UNITS)
        if vocabulary is not None and (unit == "bytes" or vocabulary < 2):
            raise InvalidValue("vocabulary", vocabulary, 'at least 2, with unit "tokens" alone')
        self.codec, self.unit, self.vocabulary = codec, unit, vocabulary
        ids = codecs.Symbols(width=4, alphabet=vocabulary)
        self._state = codecs.new(codec, codecs.TEXT if unit == "bytes" else ids)
        self._fed = 0

    @property
    def fed(self) -> int:
        """Bytes fed so far, 4 for a token id."""
        return self._fed

    def feed(self, data: bytes | Sequence[int]) -> Meter:
        """Append bytes, or token ids; returns the meter, so that calls chain.

        Raises:
            InvalidValue: the other unit, or a token id outside the vocabulary.
        """
        raw = bytes(data) if isinstance(data, (bytes, bytearray, memoryview)) else None
        if (raw is None) is (self.unit == "bytes"):
            allowed = "bytes" if self.unit == "bytes" else "a sequence of token ids"
            raise InvalidValue("data", type(data).__name__, f"{allowed}, as unit = {self.unit!r}")
        if raw is None:
            raw = self._as_uint32(data)
        self._state.feed(raw)
        self._fed += len(raw)
        return self

    def _as_uint32(self, tokens: Sequence[int]) -> bytes:
        ids = np.asarray(tokens, dtype=np.int64)
        limit = 2**32 if self.vocabulary is None else self.vocabulary
        if ids.size and not 0 <= ids.min() <= ids.max() < limit:
            wrong = int(ids.min() if ids.min() < 0 else ids.max())
            raise InvalidValue("data", wrong, f"token ids from 0 to {limit - 1}")
        return ids.astype("<u4").tobytes()

    def size(self) -> int:
        """Compressed bytes of everything fed so far."""
        return self._state.size()
