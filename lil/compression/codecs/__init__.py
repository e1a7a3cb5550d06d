"""Codecs a meter can count with: one file each, and the file's name is the codec's name.

A codec file defines `new(symbols: Symbols) -> Codec`. Adding one touches no table: `names()` reads
the folder and `new(name)` imports the file on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from lil.registry import Folder


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """What the bytes of a stream stand for; general compressors see bytes and need not know.

    Args:
        width: bytes of one symbol: 1 for text, 4 for token ids as little-endian uint32.
        alphabet: number of different symbols; None where it is not known.
    """

    width: int = 1
    alphabet: int | None = 256


TEXT = Symbols()


class Codec(Protocol):
    """The smallest thing a meter needs: one stream of bytes and its compressed length so far."""

    def feed(self, data: bytes) -> None:
        """Append bytes to the stream."""
        ...

    def size(self) -> int:
        """Bytes that everything fed so far takes compressed; the stream stays open."""
        ...

    def copy(self) -> Codec:
        """An independent codec in the same state."""
        ...


_FOLDER = Folder(__name__, "codec")
names, describe = _FOLDER.names, _FOLDER.describe


def new(name: str, symbols: Symbols = TEXT) -> Codec:
    """An empty codec by name, for a stream of `symbols`.

    Raises:
        InvalidValue: no codec has this name, or it needs to know an alphabet that is None.
    """
    return cast(Codec, _FOLDER.module(name).new(symbols))
