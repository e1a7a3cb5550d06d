"""A file's tensors, checked against what its model needs and read a piece at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from experiments.grid.gguf.architectures import Conversion, Part
from experiments.grid.gguf.header import Header, TensorEntry, Unconvertible

Array = np.ndarray[Any, Any]

#: Numbers that are dequantised at once: what a conversion takes is a few times their bytes.
PIECE = 1 << 18

#: Types of storage that are kept as they are; all others become float32, which holds them exactly.
_KEPT = {"F16": ("F16", 2), "BF16": ("BF16", 2)}
#: Types whose numbers need more than their own tensor.
_NOT_ALONE = {"NVFP4"}


@dataclass(frozen=True)
class Storage:
    """A type of storage.

    Args:
        name: of the type.
        block: numbers that are stored together.
        width: bytes of a block.
        made: the type it becomes, by the name that safetensors has for it.
        made_width: bytes of a number of that.
    """

    name: str
    block: int
    width: int
    made: str
    made_width: int


def storage(entry: TensorEntry) -> Storage:
    """How a tensor is stored.

    Raises:
        Unconvertible: a type that cannot be dequantised here.
    """
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(entry.kind)
    except ValueError as error:
        raise _refused(entry, f"type {entry.kind}") from error
    block, width = gguf.GGML_QUANT_SIZES[kind]
    try:
        if kind.name in _NOT_ALONE:
            raise NotImplementedError
        gguf.dequantize(np.zeros((1, width), np.uint8), kind)
    except NotImplementedError as error:
        raise _refused(entry, kind.name) from error
    if entry.shape[-1] % block:
        raise Unconvertible(f"tensor {entry.name!r} has rows of no whole blocks of {kind.name}")
    return Storage(kind.name, block, width, *_KEPT.get(kind.name, ("F32", 4)))


def _refused(entry: TensorEntry, kind: str) -> Unconvertible:
    return Unconvertible(f"tensor {entry.name!r} is stored as {kind}, which cannot be dequantised")


@dataclass(frozen=True)
class Source:
    """A tensor that is there, fits, and is ready to be read.

    Args:
        entry: of the file.
        part: what it becomes.
        storage: how it is stored.
    """

    entry: TensorEntry
    part: Part
    storage: Storage

    @property
    def made(self) -> str:
        """The type it becomes: numbers that are added to need room for the sum."""
        return "F32" if self.part.added else self.storage.made

    @property
    def nbytes(self) -> int:
        """Bytes of what it becomes."""
        width = 4 if self.part.added else self.storage.made_width
        return math.prod(self.entry.shape) * width

    def pieces(self, file: BinaryIO) -> Iterator[bytes]:
        """What it becomes, in order.

        Args:
            file: the GGUF file, open.

        Raises:
            Unconvertible: the file has become shorter, or numbers that are not finite.
        """
        if self.part.heads:
            yield self._bytes(self._sorted(file))
            return
        length = self.entry.shape[-1]
        rows = math.prod(self.entry.shape[:-1])
        at_once = max(1, PIECE // length)
        for first in range(0, rows, at_once):
            yield self._bytes(self._raw(file, first, min(at_once, rows - first)))

    def _sorted(self, file: BinaryIO) -> Array:
        """Rows sorted from pairs to halves, packed as they are."""
        rows = self.part.shape[0]
        raw = self._raw(file, 0, math.prod(self.entry.shape[:-1])).reshape(rows, -1)
        pairs = rows // self.part.heads // 2
        found = raw.reshape(self.part.heads, pairs, 2, -1).swapaxes(1, 2)
        flat = np.ascontiguousarray(found).reshape(rows, -1)
        return flat.reshape(1, -1) if len(self.entry.shape) == 1 else flat

    def _raw(self, file: BinaryIO, first: int, rows: int) -> Array:
        width = self.entry.shape[-1] // self.storage.block * self.storage.width
        file.seek(self.entry.at + first * width)
        data = file.read(rows * width)
        if len(data) != rows * width:
            raise Unconvertible("it has become shorter while it was read")
        return np.frombuffer(data, np.uint8).reshape(rows, width)

    def _bytes(self, raw: Array) -> bytes:
        import gguf

        if self.made == "BF16":
            finite = (raw.view("<u2") & 0x7F80) != 0x7F80
        elif self.made == "F16":
            finite = np.isfinite(raw.view("<f2"))
        else:
            with np.errstate(all="ignore"):  # what overflows is refused below
                kind = gguf.GGMLQuantizationType(self.entry.kind)
                numbers = gguf.dequantize(raw, kind).astype("<f4", copy=False)
            raw = numbers + np.float32(self.part.added) if self.part.added else numbers
            finite = np.isfinite(raw)
        if not finite.all():
            raise Unconvertible(f"tensor {self.entry.name!r} has numbers that are not finite")
        return raw.tobytes()


def sources(header: Header, conversion: Conversion, size: int) -> list[Source]:
    """Everything that is to be read, or why it cannot be; no tensor is read.

    Args:
        header: of the file.
        conversion: what it becomes.
        size: of the file in bytes.

    Raises:
        Unconvertible: tensors that are missing, foreign, of other shapes, of types that cannot be
            dequantised, or that lie beyond the file or over each other.
    """
    there, wanted = header.tensors, conversion.parts
    if missing := sorted(wanted.keys() - there.keys()):
        raise Unconvertible(f"{_named(missing)} missing")
    if foreign := sorted(there.keys() - wanted.keys() - conversion.told):
        raise Unconvertible(f"{_named(foreign)} not known to be of {header.architecture}")
    found = []
    for name, part in wanted.items():
        entry = there[name]
        if entry.shape != part.shape:
            raise Unconvertible(
                f"tensor {name!r} has the shape {list(entry.shape)}, not {list(part.shape)}"
            )
        found.append(Source(entry, part, storage(entry)))
    ends = sorted(_extent(entry, storage(entry)) for entry in there.values())
    if any(end > size for _, end in ends):
        raise Unconvertible("tensors of it lie beyond the file, which seems cut off")
    if any(end > start for (_, end), (start, _) in pairwise(ends)):
        raise Unconvertible("tensors of it lie over each other")
    return found


def _named(names: list[str]) -> str:
    shown = ", ".join(repr(name[:60]) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensors {shown}{more} are" if len(names) > 1 else f"tensor {shown} is"


def _extent(entry: TensorEntry, kind: Storage) -> tuple[int, int]:
    size = math.prod(entry.shape) // kind.block * kind.width
    return entry.at, entry.at + size


def small(
    file: BinaryIO, tensors: Mapping[str, TensorEntry], name: str, length: int
) -> Array | None:
    """A list of float32 numbers among the tensors; None where there is none.

    Args:
        file: the GGUF file, open.
        tensors: of its header.
        name: of the list.
        length: it has to have.

    Raises:
        Unconvertible: of another length or type, beyond the file, or not finite and above 0.
    """
    entry = tensors.get(name)
    if entry is None:
        return None
    if entry.shape != (length,) or storage(entry).name != "F32":
        raise Unconvertible(f"tensor {name!r} is no list of {length} float32 numbers")
    if entry.at + 4 * length > os.fstat(file.fileno()).st_size:
        raise Unconvertible("tensors of it lie beyond the file, which seems cut off")
    file.seek(entry.at)
    found = np.frombuffer(file.read(4 * length), "<f4").astype(np.float64)
    if not (np.isfinite(found) & (found > 0)).all():
        raise Unconvertible(f"tensor {name!r} has numbers that are not finite and above 0")
    return found
