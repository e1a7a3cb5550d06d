"""The LZ penalty of all rows in one pass in C++, on CPUs.

Its one file is compiled while the package is installed, where there is a compiler; see
`pyproject.toml`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lil.penalties._lz_state import LZState, LZTables

_NAMES = {torch.float32: "float32", torch.float64: "float64"}


class _Rows(ctypes.Structure):
    """`LilLzRows` of lz.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "C", "E")),
        *((name, ctypes.c_void_p) for name in LZState._fields),
    )


class _Tables(ctypes.Structure):
    """`LilLzTables` of lz.cpp."""

    _fields_ = (*((name, ctypes.c_void_p) for name in LZTables._fields), ("D", ctypes.c_int64))


class CppLZ:
    """Rows one after the other, each in one pass over its ring."""

    name: ClassVar[str] = "cpp"

    def __init__(self, state: LZState, tables: Callable[[torch.dtype], LZTables]) -> None:
        self._state = state
        sizes = (*state.tokens.shape, state.exempt.shape[1])
        self._rows = _Rows(*sizes, *(x.data_ptr() for x in state))
        self._tables = functools.cache(lambda dtype: _Pointers(tables(dtype)))

    def load(self, history: Tensor) -> None:
        history = history.contiguous()
        _library().lil_lz_load(ctypes.byref(self._rows), history.shape[1], history.data_ptr())

    def step(
        self,
        newest: Tensor | None,
        live: Tensor | None,
        scores: Tensor | None,
        places: Tensor | None,
    ) -> None:
        if scores is None:
            self._run(newest, live, None, None)
        elif scores.dtype in _NAMES:
            self._run(newest, live, scores, places)
        else:  # a narrower type, of which a row is computed in float32
            wide = (scores if places is None else scores[places]).float()
            self._run(newest, live, wide, None)
            if places is None:
                scores.copy_(wide)
            else:
                scores.index_copy_(0, places, wide.to(scores.dtype))

    def _run(
        self,
        newest: Tensor | None,
        live: Tensor | None,
        scores: Tensor | None,
        places: Tensor | None,
    ) -> None:
        newest, live, places = (
            None if x is None else x.contiguous() for x in (newest, live, places)
        )
        if scores is None:
            dtype, sizes, table = torch.float32, (0.0, 0, 0), None
        else:
            V, dtype = scores.shape[1], scores.dtype
            sizes, table = (math.log2(V), V, scores.stride(0)), self._tables(dtype).pointer
        getattr(_library(), f"lil_lz_step_{_NAMES[dtype]}")(
            ctypes.byref(self._rows), _at(newest), _at(live), table, *sizes, _at(places),
            _at(scores),
        )  # fmt: skip


class _Pointers:
    """Where tables lie, and the tables, so that they stay there."""

    def __init__(self, tables: LZTables) -> None:
        self._kept = tables
        rows = max(tables.derived, tables.printed, key=Tensor.numel).shape[1]
        self._struct = _Tables(*(x.data_ptr() for x in tables), rows)
        self.pointer = ctypes.byref(self._struct)


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def built() -> bool:
    """Whether a compiler was there when the package was installed."""
    return importlib.util.find_spec("lil.penalties._lz_kernel") is not None


@functools.cache
def _library() -> Any:
    spec = importlib.util.find_spec("lil.penalties._lz_kernel")
    assert spec is not None, "it is asked first whether it was built"
    assert spec.origin is not None
    loaded = ctypes.CDLL(spec.origin)
    loaded.lil_lz_load.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    loaded.lil_lz_load.restype = None
    for dtype in _NAMES.values():
        step = getattr(loaded, f"lil_lz_step_{dtype}")
        step.argtypes = [
            *[ctypes.c_void_p] * 4,
            ctypes.c_double,
            *[ctypes.c_int64] * 2,
            *[ctypes.c_void_p] * 2,
        ]
        step.restype = None
    return loaded
