"""One growing tensor of a layer's state, rows first, slots third."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

# Below this many slots growth is not worth the copies.
SMALLEST = 64


class Slots:
    """A tensor (B, H, C, ...) whose C doubles when tokens no longer fit."""

    def __init__(
        self,
        rows: int,  # B
        heads: int,  # H, those that have states of their own (KV heads, or 1)
        tail: Sequence[int] = (),  # shape of one slot
        *,
        dtype: torch.dtype,
        device: torch.device,
        fill: float = 0.0,  # what an empty slot holds
        unit: int = 1,  # tokens per slot (a page bound has many, a key has one)
        multiple: int = 1,  # C is kept a multiple of this, so that slots can be viewed as pages
        limit: int | None = None,  # C is doubled no further; None for no end
    ) -> None:
        self.fill, self.unit, self.multiple, self.limit = fill, unit, multiple, limit
        # Tokens to which rows will grow, where that is known: C is doubled no further.
        self.expected = 0
        self.data = torch.full((rows, heads, 0, *tail), fill, dtype=dtype, device=device)
        # What `data` is the first rows of, where it must not move.
        self.fixed: Tensor | None = None
        self._flat: tuple[Tensor, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A view would be copied as memory of its own.
        return self.__dict__ | {"_flat": None, "fixed": None}

    @property
    def capacity(self) -> int:
        """C: slots allocated per row and head."""
        return self.data.shape[2]

    @property
    def flat(self) -> Tensor:
        """The slots of all rows and heads in one axis: (B * H * C, ...)."""
        # Asked for several times a step, where making a view takes as long as using it.
        if self._flat is None or self._flat[0] is not self.data:
            self._flat = self.data, self.data.flatten(0, 2)
        return self._flat[1]

    @cached_property
    def width(self) -> int:
        """Bytes of one slot of a row and head."""
        return math.prod(self.data.shape[3:]) * self.data.itemsize

    @cached_property
    def empty(self) -> Tensor:
        """What an empty slot holds, (...)."""
        return self.data.new_full(self.data.shape[3:], self.fill)

    def size(self, tokens: int) -> int:
        """C that holds so many tokens of a row."""
        size = -(-tokens // self.unit)
        if self.limit is not None:
            size = min(size, self.limit)
        return -(-size // self.multiple) * self.multiple

    def row_bytes(self, tokens: int) -> int:
        """Bytes of a row for which so many tokens are reserved."""
        return self.data.shape[1] * self.size(tokens) * self.width

    def fit(self, tokens: int) -> None:
        """Make room for this many tokens in every row."""
        slots = -(-tokens // self.unit)
        if slots <= self.capacity:
            return
        size = max(slots, 2 * self.capacity, SMALLEST // self.unit)
        if self.expected:
            size = max(slots, min(size, self.size(self.expected)))
        if self.limit is not None:
            size = max(slots, min(size, self.limit))
        self.resize(-(-size // self.multiple) * self.multiple)

    def reserve(self, rows: int, tokens: int) -> None:
        """Take memory that holds so many rows of so many tokens and stays where it is.

        It moves only where rows or tokens become more than that.
        """
        size, old = self.size(tokens), self.data
        self.fixed = old.new_full((rows, old.shape[1], size, *old.shape[3:]), self.fill)
        self.data, self._flat = self.fixed[: len(old)], None  # a view would hold the old memory
        self.data[:, :, : old.shape[2]] = old[:, :, :size]

    def resize(self, size: int) -> None:
        """Reallocate with exactly `size` slots, keeping what fits."""
        old, self.fixed = self.data, None
        self.data = old.new_full((*old.shape[:2], size, *old.shape[3:]), self.fill)
        remaining = min(size, old.shape[2])
        self.data[:, :, :remaining] = old[:, :, :remaining]

    def select(self, index: Tensor) -> None:
        """Rows `index` (any order, repeats allowed) become the rows of this tensor."""
        selected = self.data.index_select(0, index)
        if self.fixed is None or len(index) > len(self.fixed):
            self.data, self.fixed = selected, None
        else:
            self.data = self.fixed[: len(index)].copy_(selected)

    def replace(self, rows: Tensor, other: Slots, other_rows: Tensor) -> None:
        """Rows `rows` become copies of `other_rows` of `other`; the other rows stay as they are."""
        size = other.capacity
        self.fit(size * self.unit)
        self.data[rows, :, :size] = other.data[other_rows].to(self.data)
        self.data[rows, :, size:] = self.fill

    def clear(self, rows: Tensor) -> None:
        """Empty these rows."""
        self.data[rows] = self.fill
