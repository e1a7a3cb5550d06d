"""The header of a GGUF file, read within bounds: its values, and its tensors' names and shapes.

Every count and length is compared with the bytes that are left in the file before anything is read
by it. The `gguf` package does not do that: a count of 2**60 keeps it busy for ever.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

#: The most bytes of a header, and the most values in all its arrays.
MOST_BYTES, MOST_VALUES = 64 << 20, 1 << 22

_SCALARS = {
    **dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))),
    **dict(enumerate(("<Q", "<q", "<d"), start=10)),
}
_TEXT, _ARRAY = 8, 9
_LEAST_TEXT, _LEAST_TENSOR = 8, 32  # bytes


class UnreadableFile(ValueError):  # noqa: N818 - a state of a file, with the reason
    """A GGUF file that cannot be used, with the reason."""


@dataclass(frozen=True)
class Header:
    """The values of a file by name, and the shape of each tensor, rows first."""

    values: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]


def read_header(file: BinaryIO) -> Header:
    """Read the header of an open file, and none of its weights."""
    file.seek(0)
    data = file.read(min(os.fstat(file.fileno()).st_size, MOST_BYTES))
    if data[:4] != b"GGUF":
        raise UnreadableFile("it does not begin as GGUF files do")
    return _Cursor(data).header()


class _Cursor:
    """A place in the bytes of a header, which only moves forward."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.array_values = data, 4, 0

    def header(self) -> Header:
        version = self._scalar("<I")
        if version not in (2, 3):
            raise UnreadableFile(f"its version is {version}, not 3")
        tensor_count, value_count = self._scalar("<Q"), self._scalar("<Q")
        self._require(value_count, _LEAST_TEXT, "values")
        values: dict[str, Any] = {}
        for _ in range(value_count):
            name = self._text()
            if name in values:
                raise UnreadableFile(f"its value {name[:80]!r} is there twice")
            values[name] = self._value(self._scalar("<I"))
        self._require(tensor_count, _LEAST_TENSOR, "tensors")
        tensors: dict[str, tuple[int, ...]] = {}
        for _ in range(tensor_count):
            name, dimensions = self._text(), self._scalar("<I")
            if name in tensors or not 1 <= dimensions <= 4:
                raise UnreadableFile(f"tensor {name[:80]!r} is there twice or has no shape")
            tensors[name] = tuple(self._scalar("<Q") for _ in range(dimensions))[::-1]
            self._scalar("<I"), self._scalar("<Q")  # type of storage and offset
        return Header(values, tensors)

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise UnreadableFile(f"a value of it is of type {kind}, which there is not")
        inner, count = self._scalar("<I"), self._scalar("<Q")
        if inner != _TEXT and inner not in _SCALARS:
            raise UnreadableFile(f"an array of it holds type {inner}")
        self.array_values += count
        if self.array_values > MOST_VALUES:
            raise UnreadableFile(f"its arrays claim {self.array_values:,} values")
        self._require(count, 1, "values of an array")
        if inner == _TEXT:
            return [self._text() for _ in range(count)]
        return [self._scalar(_SCALARS[inner]) for _ in range(count)]

    def _scalar(self, form: str) -> Any:
        width = struct.calcsize(form)
        self._require(1, width, "values")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += width
        return value

    def _text(self) -> str:
        length = self._scalar("<Q")
        self._require(length, 1, "bytes of a text")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def _require(self, count: int, width: int, what: str) -> None:
        if count * width > len(self.data) - self.at:
            raise UnreadableFile(f"it claims {count:,} {what} at byte {self.at}, beyond its end")
