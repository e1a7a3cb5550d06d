"""A compression curve in few bytes: a study holds tens of thousands of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

#: Tokens (None: not known), original bytes, compressed bytes.
Point: TypeAlias = tuple[int | None, int, int]


class Points(Sequence[Point]):
    """The points of a curve, equal to the tuple of them; twelve bytes each.

    Raises:
        OverflowError: a number of 2^31 or more.
    """

    __slots__ = ("_flat",)

    def __init__(self, points: Iterable[Point] = ()) -> None:
        told = ((-1 if tokens is None else tokens, raw, small) for tokens, raw, small in points)
        self._flat = array("i", (number for point in told for number in point))

    @classmethod
    def from_bytes(cls, data: bytes) -> Points:
        """What `bytes` of a curve gave.

        Raises:
            ValueError: no such bytes.
        """
        made = cls()
        made._flat.frombytes(data)
        if len(made._flat) % 3:
            raise ValueError(f"{len(data)} bytes are no points")
        return made

    def __bytes__(self) -> bytes:
        return self._flat.tobytes()

    def columns(self) -> npt.NDArray[np.intc]:
        """The same numbers as an array (points, 3); -1 where tokens are not known."""
        return np.frombuffer(self._flat, dtype=np.intc).reshape(-1, 3)

    def __len__(self) -> int:
        return len(self._flat) // 3

    def __iter__(self) -> Iterator[Point]:
        flat = self._flat
        for tokens, raw, small in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            yield (None if tokens < 0 else tokens), raw, small

    @overload
    def __getitem__(self, at: int) -> Point: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Point, ...]: ...

    def __getitem__(self, at: int | slice) -> Point | tuple[Point, ...]:
        if isinstance(at, slice):
            return tuple(self._point(one) for one in range(*at.indices(len(self))))
        return self._point(range(len(self))[at])

    def _point(self, at: int) -> Point:
        tokens, raw, small = self._flat[3 * at : 3 * at + 3]
        return (None if tokens < 0 else tokens), raw, small

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Points):
            return self._flat == other._flat
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __repr__(self) -> str:
        return f"Points({list(self)!r})"


def encoded(value: Any) -> bytes:
    """A hook for msgspec: what is written for a curve."""
    if isinstance(value, Points):
        return bytes(value)
    raise NotImplementedError(f"no way to keep a {type(value).__name__}")


def decoded(kind: type[Any], value: Any) -> Any:
    """The hook that reads it back; what may be anything stays as it is."""
    return Points.from_bytes(value) if kind is Points else value
