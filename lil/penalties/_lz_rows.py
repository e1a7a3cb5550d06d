"""Rows of the LZ penalty, each with parameters of its own, computed together on a GPU."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention.engines import ENGINES, gpu
from lil.compression.matching import EMPTY
from lil.penalties import _lz_state
from lil.penalties._lz_state import LZParameters, LZState, LZTables


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
        self._begin(parameters, _lz_state.new_state(parameters, history.device))
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

    @property
    def nbytes(self) -> int:
        """Bytes of what is remembered."""
        return sum(x.nbytes for x in self.state)

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
            self._scratch[dtype, V] = old, full, _lz_state.tables(self.parameters, dtype, device)
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
