"""What a GGUF file says of itself, read within bounds: its values and where its tensors lie.

A header is a stranger's numbers. Each count and length is held against the bytes that are left in
the file before anything is read or made room for by it, so reading costs what the file is long.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

#: The most bytes that values and the table of tensors may take; large vocabularies take 20 MB.
MOST = 64 << 20
#: The most values, and the most that all their arrays hold together: each takes an object here.
MOST_VALUES, MOST_HELD = 65_536, 1 << 22
#: The most tensors: of hundreds of layers with a dozen each.
MOST_TENSORS = 65_536
#: Versions of the format that count in 64 bits, as everything written since 2023 does.
VERSIONS = (2, 3)

_MAGIC = b"GGUF"
_SCALARS = {
    **dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))),
    **dict(enumerate(("<Q", "<q", "<d"), start=10)),
}
_TEXT, _ARRAY = 8, 9
# What the least of a value, of a tensor's entry and of a text takes.
_LEAST_VALUE, _LEAST_TENSOR, _LEAST_TEXT = 13, 32, 8


class Unconvertible(Exception):  # noqa: N818 - a state of a file, with the reason
    """A file that cannot be converted, with the reason in words."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies and how it is stored.

    Args:
        name: in the file.
        shape: rows first, as torch has it.
        kind: number of its type of storage.
        at: offset of its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    at: int


@dataclass(frozen=True)
class Header:
    """A file's values and tensors.

    Args:
        values: by their names; arrays are lists.
        tensors: by their names.
    """

    values: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    @property
    def architecture(self) -> str:
        """The family whose names the file's values have.

        Raises:
            Unconvertible: none is named.
        """
        name = self.values.get("general.architecture")
        if not isinstance(name, str):
            raise Unconvertible("it names no architecture")
        return name


def read_header(file: BinaryIO) -> Header:
    """Read the header of an open file; its tensors are not looked at.

    Args:
        file: open for reading, of any position.

    Raises:
        Unconvertible: no GGUF, of another version, or numbers that its bytes do not bear out.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    data = file.read(min(size, MOST))
    if data[: len(_MAGIC)] != _MAGIC:
        raise Unconvertible("it does not begin as GGUF files do")
    return _Reading(data, size).header()


class _Reading:
    """A place in the bytes of a header, which only goes forward."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size, self.at = data, size, len(_MAGIC)
        self.held = 0  # values of arrays up to here

    def header(self) -> Header:
        version = self._scalar("<I")
        if version not in VERSIONS:
            other = int.from_bytes(int(version).to_bytes(4, "little"), "big")
            order = " in another order of bytes" if other in VERSIONS else ""
            raise Unconvertible(f"its version is {other if order else version}{order}, not 3")
        tensors, values = self._scalar("<Q"), self._scalar("<Q")
        if values > MOST_VALUES or tensors > MOST_TENSORS:
            raise Unconvertible(f"it claims {values:,} values and {tensors:,} tensors")
        self._require(values, _LEAST_VALUE, "values")
        found = self._values(values)
        self._require(tensors, _LEAST_TENSOR, "tensors")
        return Header(found, self._tensors(tensors, _alignment(found)))

    def _values(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            name = self._text()
            if name in found:
                raise Unconvertible(f"its value {name[:80]!r} is there twice")
            found[name] = self._value(self._scalar("<I"))
        return found

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorEntry]:
        listed = []
        for _ in range(count):
            name = self._text()
            dimensions = self._scalar("<I")
            if not 1 <= dimensions <= 4:
                raise Unconvertible(f"tensor {name[:80]!r} claims {dimensions:,} dimensions")
            shape = tuple(self._scalar("<Q") for _ in range(dimensions))[::-1]
            listed.append((name, shape, self._scalar("<I"), self._scalar("<Q")))
        start = -(-self.at // alignment) * alignment
        found: dict[str, TensorEntry] = {}
        for name, shape, kind, offset in listed:
            if name in found:
                raise Unconvertible(f"tensor {name[:80]!r} is there twice")
            if offset % alignment or start + offset > self.size:
                raise Unconvertible(f"tensor {name[:80]!r} lies outside the file")
            if not all(0 < length <= self.size * 8 for length in shape):
                raise Unconvertible(f"tensor {name[:80]!r} has the shape {list(shape)}")
            found[name] = TensorEntry(name, shape, kind, start + offset)
        return found

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise Unconvertible(f"a value of it is of type {kind}, which there is not")
        inner, count = self._scalar("<I"), self._scalar("<Q")
        self.held += count
        if self.held > MOST_HELD:
            raise Unconvertible(f"its arrays claim {self.held:,} values")
        if inner in _SCALARS:
            form = _SCALARS[inner]
            self._require(count, struct.calcsize(form), "values of an array")
            values = struct.unpack_from(f"<{count}{form[1]}", self.data, self.at)
            self.at += count * struct.calcsize(form)
            return list(values)
        if inner != _TEXT:
            raise Unconvertible(f"an array of it holds type {inner}")
        self._require(count, _LEAST_TEXT, "texts of an array")
        return [self._text() for _ in range(count)]

    def _scalar(self, form: str) -> Any:
        width = struct.calcsize(form)
        self._require(1, width, "values")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += width
        return value

    def _text(self) -> str:
        length = self._scalar("<Q")
        self._require(length, 1, "bytes of a text")
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise Unconvertible(f"a text of it is no UTF-8 (at byte {self.at - length})") from error

    def _require(self, count: int, width: int, what: str) -> None:
        """Refuse what the bytes that are left cannot hold."""
        left = len(self.data) - self.at
        if count * width > left:
            beyond = self.size > len(self.data) and count * width <= self.size - self.at
            room = f"the {MOST >> 20} MB of a header" if beyond else "the file"
            raise Unconvertible(f"it claims {count:,} {what} at byte {self.at}, beyond {room}")


def _alignment(values: Mapping[str, Any]) -> int:
    found = values.get("general.alignment", 32)
    if type(found) is not int or found <= 0 or found & (found - 1) or found > 1 << 20:
        raise Unconvertible(f"its alignment is {str(found)[:80]}, no power of two")
    return found
