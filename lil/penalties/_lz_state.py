"""What the LZ penalty remembers of rows that each have parameters of their own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention.core import devices
from lil.compression.matching import EMPTY

FORMULAS = ("derived", "printed", "rate")


def extension(formula: str, length: Tensor, d: Tensor) -> Tensor:
    """Bits of tokens that extend matches of `length` >= 1 at distances `d` >= 2."""
    if formula == "printed":
        length = length.clamp(min=2)
        return (1 - (d - length + 1) / (length * d)).log2() - 1
    return ((length + 1) * (d - 1) / (length * d)).log2() - 1


class LZParameters(NamedTuple):
    """The parameters of one row.

    Args:
        alpha: score units per bit.
        size: places of the row's ring: buffer + window, of `rate` the window alone.
        buffer: newest tokens that are matched.
        formula: one of `FORMULAS`.
        exempt: token ids whose scores never change.
    """

    alpha: float
    size: int
    buffer: int
    formula: str
    exempt: tuple[int, ...]


class LZState(NamedTuple):
    """B rings of C places, of which each row uses the first `size`, and where they match.

    Args:
        tokens: (B, C) int32, the newest at its mark and the others before it, around the ring's
            end; `EMPTY` where there is none.
        lengths: (B, C) int32, how many tokens up to and including one equal as many newest ones, at
            most `buffer`. They belong to distances, the newest token's at size - 1, so that a new
            token moves none of them.
        marks: (B, 2) int32, the newest token's place and how many tokens there are.
        shapes: (B, 3) int32, size, buffer and index of the formula.
        alphas: (B,) float64.
        exempt: (B, E) int32, `EMPTY` where there is none.
    """

    tokens: Tensor
    lengths: Tensor
    marks: Tensor
    shapes: Tensor
    alphas: Tensor
    exempt: Tensor


class LZTables(NamedTuple):
    """Logarithms and extension values of one type, as torch makes them on the device.

    Args:
        logarithms: (n,), to base 2, of 0, 1, 2 ...
        derived, printed: (lengths, distances) from length 0 and distance 0 on.
    """

    logarithms: Tensor
    derived: Tensor
    printed: Tensor


def new_state(rows: Sequence[LZParameters], device: torch.device) -> LZState:
    """The state of rows without any tokens."""
    C, most = max(row.size for row in rows), max(len(row.exempt) for row in rows)
    shapes = [(row.size, row.buffer, FORMULAS.index(row.formula)) for row in rows]
    exempt = [[*row.exempt, *[EMPTY] * (most - len(row.exempt))] for row in rows]
    return LZState(
        torch.empty((len(rows), C), dtype=torch.int32, device=device),
        torch.empty((len(rows), C), dtype=torch.int32, device=device),
        torch.empty((len(rows), 2), dtype=torch.int32, device=device),
        devices.put(shapes, device, torch.int32),
        devices.put([row.alpha for row in rows], device, torch.float64),
        devices.put(exempt, device, torch.int32).view(len(rows), most),
    )


def tables(rows: Sequence[LZParameters], dtype: torch.dtype, device: torch.device) -> LZTables:
    """Those that are large enough for these rows."""
    extending = {row.formula for row in rows} & {"derived", "printed"}
    lengths = max((row.buffer for row in rows if row.formula in extending), default=0)
    distances = max(row.size - row.buffer for row in rows)
    none = torch.empty((0, 0), dtype=dtype, device=device)
    # Rounded up, so that rows of other lengths seldom need others.
    L, D = _power_of_two(lengths + 1), _power_of_two(distances + 1)
    most = _power_of_two(max(max(row.size, row.buffer) for row in rows) + 2)
    derived, printed = (
        _extensions(formula, L, D, dtype, device) if formula in extending else none
        for formula in ("derived", "printed")
    )
    if derived.numel() and printed.numel():
        assert derived.shape == printed.shape
    return LZTables(_logarithms(most, dtype, device), derived, printed)


@functools.lru_cache(maxsize=16)
def _logarithms(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.arange(n, device=device).to(dtype).log2()


@functools.lru_cache(maxsize=8)
def _extensions(formula: str, L: int, D: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    length, d = (torch.arange(n, device=device).to(dtype) for n in (L, D))
    return extension(formula, length[:, None], d)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
