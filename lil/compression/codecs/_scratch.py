"""Counting by compressing everything again at each reading, for compressors that cannot go on."""

from __future__ import annotations

from abc import abstractmethod

from lil.compression.codecs import TEXT, Codec, Symbols


class FromScratch(Codec):
    """A codec that keeps the bytes and compresses all of them at every `size()`."""

    def __init__(self, symbols: Symbols = TEXT) -> None:
        del symbols  # it sees bytes
        self._data = bytearray()

    @staticmethod
    @abstractmethod
    def from_scratch(data: bytes) -> int:
        """Length of `data` compressed in one call, in bytes."""

    def feed(self, data: bytes) -> None:
        self._data += data

    def size(self) -> int:
        return self.from_scratch(bytes(self._data))
