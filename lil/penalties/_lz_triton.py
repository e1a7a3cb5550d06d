"""The LZ penalty of all rows in one kernel, on GPUs; a program has a row."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention.engines import ENGINES
from attention.engines.gpu import interpreted
from lil.penalties._lz_state import LZState, LZTables


class Tile(NamedTuple):
    """Rows of a program, and the places of each that it compares with each other."""

    ROWS: int
    BLOCK: int


#: A GPU has many programs at work; the interpreter computes one after the other.
TILE, INTERPRETED = Tile(1, 64), Tile(64, 32)


class TritonLZ:
    """Steps of all rows of a state, with the numbers of torch; the state's tensors stay the same.

    Nothing waits for the device; a graph can capture steps once one has been made.
    """

    def __init__(self, state: LZState, tables: Callable[[torch.dtype], LZTables]) -> None:
        self._state = state
        self._tables = functools.cache(tables)
        # What scores were before a step: a place is read before any is written.
        self._old = functools.cache(
            lambda dtype: torch.empty(state.tokens.shape, dtype=dtype, device=state.tokens.device)
        )

    def load(self, history: Tensor) -> None:
        """Start anew from `history` (B, n) int64, right-aligned with `EMPTY` before short rows."""
        (B, C), n = self._state.tokens.shape, history.shape[1]
        tokens, lengths, marks, shapes, *_ = self._state
        tile = INTERPRETED if interpreted() else TILE
        _kernels().load[-(-B // tile.ROWS), -(-C // tile.BLOCK)](
            tokens, lengths, marks, shapes, history.contiguous(), B, C, n, **tile._asdict()
        )

    def step(
        self,
        newest: Tensor | None,
        live: Tensor | None,
        scores: Tensor | None,
        places: Tensor | None,
    ) -> None:
        """Append a token to each row, then lower its scores by what is remembered; either or both.

        Args:
            newest: (B,) int64; None: nothing is appended.
            live: (B,), which rows have one; None: all.
            scores: (rows, V), raw; written in place.
            places: (B,) int64, of each row, its row in the scores; None: its own.
        """
        tokens, lengths, marks, shapes, alphas, exempt = self._state
        (B, C), E = tokens.shape, exempt.shape[1]
        none = marks  # in place of what a kernel is compiled without
        if scores is None:
            full = old = logarithms = derived = printed = own = none
            V, stride, D = 0, 0, 0
        else:
            dtype = torch.promote_types(scores.dtype, torch.float32)
            own, V, stride = scores, scores.shape[1], scores.stride(0)
            full, old = _bits(V, dtype, scores.device), self._old(dtype)
            logarithms, derived, printed = self._tables(dtype)
            D = max(derived, printed, key=Tensor.numel).shape[1]
        newest, live, places = (
            None if x is None else x.contiguous() for x in (newest, live, places)
        )
        tile = INTERPRETED if interpreted() else TILE
        # A multiplication and an addition are rounded each, as torch rounds them.
        exact = {} if interpreted() else {"enable_fp_fusion": False}
        _kernels().step[-(-B // tile.ROWS),](
            tokens, lengths, marks, shapes, alphas, exempt if E else none,
            none if newest is None else newest, none if live is None else live,
            none if places is None else places, own, old, full, logarithms, derived, printed,
            B, C, V, stride, D, E,
            NEWEST=newest is not None, LIVE=live is not None, PLACES=places is not None,
            SCORES=scores is not None, EXEMPT=1 << max(E - 1, 0).bit_length() if E else 0,
            **tile._asdict(), **exact,
        )  # fmt: skip


@functools.lru_cache(maxsize=16)
def _bits(V: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """log2 V; as a number a kernel would take it in float32."""
    return torch.full((1,), math.log2(V), dtype=dtype, device=device)


def _kernels() -> Any:
    """The module of kernels, which imports triton."""
    return importlib.import_module("lil.penalties._lz_triton_kernels")


def refusal(device: torch.device) -> str | None:
    """Why it cannot work there; None where it can."""
    return ENGINES["triton"].refusal(device, torch.float32)
