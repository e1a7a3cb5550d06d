"""Rows of the LZ penalty, each with parameters of its own, computed together on a GPU."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention.core import devices
from attention.engines import ENGINES, gpu
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
    L, D = (gpu.power_of_two(n + 1, least=1) for n in (lengths, distances))
    most = gpu.power_of_two(max(max(row.size, row.buffer) for row in rows) + 2, least=1)
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


class Tile(NamedTuple):
    """Rows of a program, and the places of each that it compares with each other."""

    ROWS: int
    BLOCK: int


#: A GPU has many programs at work; the interpreter computes one after the other.
TILE, INTERPRETED = Tile(1, 64), Tile(64, 32)


@functools.lru_cache(maxsize=16)
def fused_on(device: torch.device) -> bool:
    """Whether Triton computes the rows of a device together; torch computes them elsewhere."""
    return device.type != "cpu" and ENGINES["triton"].refusal(device, torch.float32) is None


class LZRows:
    """The last tokens of each row, where they occurred before, and its parameters.

    `history` is (B, n), right-aligned with `EMPTY` before short rows. A step writes in place and
    has the numbers of torch. Nothing waits for the device; a graph can capture steps once one has
    been made.
    """

    def __init__(self, parameters: Sequence[LZParameters], history: Tensor) -> None:
        self._begin(parameters, new_state(parameters, history.device))
        tokens, lengths, marks, shapes, *_ = self.state
        (B, C), n, tile = tokens.shape, history.shape[1], _tile()
        gpu.launch(
            _kernels().load, (-(-B // tile.ROWS), -(-C // tile.BLOCK)),
            tokens, lengths, marks, shapes, history.long().contiguous(), B, C, n, **tile._asdict(),
        )  # fmt: skip

    def _begin(self, parameters: Sequence[LZParameters], state: LZState) -> None:
        self.parameters, self.state = list(parameters), state
        # What a step needs of a type of scores; graphs read it, so it stays where it is.
        self._scratch: dict[tuple[torch.dtype, int], tuple[Tensor, Tensor, LZTables]] = {}

    def push(self, newest: Tensor, live: Tensor | None = None) -> None:
        """Append `newest` (B,), leaving rows alone where `live` (B,) is False."""
        self._step(newest, live, None, None)

    def lower(
        self, scores: Tensor, places: Tensor | None = None, newest: Tensor | None = None
    ) -> Tensor:
        """The scores given, lowered in place after `newest` (B,) has been appended.

        `places` (B,) are the rows' rows in the scores; None: their own.
        """
        if scores.stride(1) != 1:
            return scores.copy_(self.lower(scores.contiguous(), places, newest))
        self._step(newest, None, scores, places)
        return scores

    def _step(
        self,
        newest: Tensor | None,
        live: Tensor | None,
        scores: Tensor | None,
        places: Tensor | None,
    ) -> None:
        (B, C), E, tile = self.state.tokens.shape, self.state.exempt.shape[1], _tile()
        V, stride, D = 0, 0, 0
        numbers: tuple[Tensor | None, ...] = (None,) * 5
        if scores is not None:
            V, stride = scores.shape[1], scores.stride(0)
            old, full, tables = self._scratch_of(scores)
            numbers, D = (old, full, *tables), max(x.shape[1] for x in tables[1:])
        if newest is not None:
            newest = newest.long()
        rows = (None if x is None else x.contiguous() for x in (newest, live, places))
        # A multiplication and an addition are rounded each, as torch rounds them.
        exact = {} if gpu.interpreted() else {"enable_fp_fusion": False}
        gpu.launch(
            _kernels().step, (-(-B // tile.ROWS),),
            *self.state[:5], self.state.exempt if E else None, *rows, scores, *numbers,
            B, C, V, stride, D, E,
            NEWEST=newest is not None, LIVE=live is not None, PLACES=places is not None,
            SCORES=scores is not None, EXEMPT=1 << max(E - 1, 0).bit_length() if E else 0,
            **tile._asdict(), **exact,
        )  # fmt: skip

    def _scratch_of(self, scores: Tensor) -> tuple[Tensor, Tensor, LZTables]:
        """Room for scores before a step, since a place is read before any is written; log2 V."""
        V, device = scores.shape[1], scores.device
        dtype = torch.promote_types(scores.dtype, torch.float32)
        if (dtype, V) not in self._scratch:
            old = torch.empty(self.state.tokens.shape, dtype=dtype, device=device)
            # As a number a kernel would take it in float32.
            full = torch.full((1,), math.log2(V), dtype=dtype, device=device)
            self._scratch[dtype, V] = old, full, tables(self.parameters, dtype, device)
        return self._scratch[dtype, V]

    def rows(self, which: Sequence[int], at: Tensor) -> LZRows:
        """These rows alone, in this order; `at` are their indices on the device."""
        parameters = [self.parameters[row] for row in which]
        state = LZState(*(x[at] for x in self.state))
        return self._with(parameters, _resized(state, parameters))

    def first(self, rows: int) -> LZRows:
        """The first rows alone, in the same memory."""
        return self._with(self.parameters[:rows], LZState(*(x[:rows] for x in self.state)))

    def write(self, other: LZRows) -> None:
        """Copy rows with the same parameters over the first ones."""
        for mine, theirs in zip(self.state, other.state, strict=True):
            mine[: len(theirs)].copy_(theirs)

    def joined(self, other: LZRows) -> LZRows:
        """This one's rows and then those of another."""
        every = self.parameters + other.parameters
        pairs = zip(_resized(self.state, every), _resized(other.state, every), strict=True)
        return self._with(every, LZState(*map(torch.cat, pairs)))

    def _with(self, parameters: Sequence[LZParameters], state: LZState) -> LZRows:
        twin = LZRows.__new__(LZRows)
        twin._begin(parameters, LZState(*(x.contiguous() for x in state)))
        return twin


def _tile() -> Tile:
    return INTERPRETED if gpu.interpreted() else TILE


def _kernels() -> Any:
    """The module of kernels, which imports triton."""
    return importlib.import_module("lil.penalties._lz_triton_kernels")


def _resized(state: LZState, parameters: Sequence[LZParameters]) -> LZState:
    """`state` with as many places as these rows need."""
    C = max(row.size for row in parameters)
    E = max(len(row.exempt) for row in parameters)
    return state._replace(
        tokens=_wide(state.tokens, C, EMPTY),
        lengths=_wide(state.lengths, C, 0),
        exempt=_wide(state.exempt, E, EMPTY),
    )


def _wide(x: Tensor, columns: int, fill: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, columns - x.shape[1]), value=fill)
