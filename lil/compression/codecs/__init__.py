"""Codecs a meter can count with: one file each, and the file's name is the codec's name.

`new(name)` finds those of other packages too, by entry point or `module:Class`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from attention.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """The meaning of a stream's bytes: `width` bytes a symbol, 4 for token ids as uint32.

    `alphabet` is the number of different symbols, None where it is not known.
    """

    width: int = 1
    alphabet: int | None = 256


TEXT = Symbols()


class Codec(ABC):
    """One stream of bytes and its compressed length so far."""

    name: ClassVar[str]
    #: Raised where the same bytes take another number of bytes than before.
    version: ClassVar[int] = 1
    #: Whether requests to a server may ask for it.
    served: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, symbols: Symbols) -> None: ...

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Append bytes to the stream."""

    @abstractmethod
    def size(self) -> int:
        """Bytes that everything fed so far takes compressed; the stream stays open."""


class FromScratch(Codec):
    """A codec that compresses everything again at every `size()`; it sees bytes."""

    def __init__(self, _symbols: Symbols = TEXT) -> None:
        self._data = bytearray()

    @staticmethod
    @abstractmethod
    def from_scratch(data: bytes) -> int:
        """Length of `data` compressed in one call, in bytes."""

    def feed(self, data: bytes) -> None:
        self._data += data

    def size(self) -> int:
        return self.from_scratch(bytes(self._data))


CODECS: Registry[Codec] = Registry("codec", (__name__,), "lil.codecs", lambda: Codec, frozen=False)
names, find, known = CODECS.names, CODECS.find, CODECS.known


def new(name: str, symbols: Symbols = TEXT) -> Codec:
    """An empty codec by name, or by `module:Class`, for a stream of `symbols`."""
    return find(name)(symbols)
