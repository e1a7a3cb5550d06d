"""Counting by compressing everything again at each reading, for compressors that cannot go on."""

from __future__ import annotations

from collections.abc import Callable


class FromScratch:
    """A codec that keeps the bytes and compresses all of them at every `size()`.

    Args:
        measure: bytes -> compressed length in bytes.
    """

    def __init__(self, measure: Callable[[bytes], int], data: bytes = b"") -> None:
        self._measure = measure
        self._data = bytearray(data)

    def feed(self, data: bytes) -> None:
        self._data += data

    def size(self) -> int:
        return self._measure(bytes(self._data))

    def copy(self) -> FromScratch:
        return FromScratch(self._measure, bytes(self._data))
