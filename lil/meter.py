"""How many bytes is everything so far, compressed?"""

from __future__ import annotations

from dataclasses import dataclass

from lil import codecs


@dataclass(frozen=True)
class Snapshot:
    """A meter's state at one moment, to be handed back to the meter that took it."""

    codec: codecs.Codec
    fed: int


class Meter:
    """Compressed size of one sequence, fed piece by piece and read at any time.

    Units: bytes in, bytes out. The size is the same however the sequence was cut into pieces. Feed
    each token's own bytes (`token_bytes`), not `decode(ids)`: decoding is not prefix-stable.

    Args:
        codec: name of the compressor; `lil.codecs.names()` lists them.

    Raises:
        InvalidValue: unknown codec.
    """

    def __init__(self, codec: str = "deflate") -> None:
        self.codec = codec
        self._state = codecs.new(codec)
        self._fed = 0

    @property
    def fed(self) -> int:
        """Bytes fed so far."""
        return self._fed

    def feed(self, data: bytes) -> Meter:
        """Append bytes; returns the meter, so that calls chain."""
        self._state.feed(data)
        self._fed += len(data)
        return self

    def size(self) -> int:
        """Compressed bytes of everything fed so far."""
        return self._state.size()

    def reset(self) -> None:
        """Forget everything."""
        self._state = codecs.new(self.codec)
        self._fed = 0

    def snapshot(self) -> Snapshot:
        """The state now; taking one changes nothing."""
        return Snapshot(self._state.copy(), self._fed)

    def rollback(self, snapshot: Snapshot) -> None:
        """Return to a snapshot of this meter; the snapshot stays usable."""
        self._state = snapshot.codec.copy()
        self._fed = snapshot.fed
