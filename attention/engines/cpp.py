"""The C++ engine for CPUs: gathers and attends in one pass, rows at their own lengths.

Its one file is compiled while the package is installed, for several instruction sets, where there
is a compiler; see `pyproject.toml`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor

from attention.core.kernels import accumulator
from attention.core.ropes import Turn
from attention.core.slots import Slots
from attention.core.step import Occupancy
from attention.engines.engine import QKV, AttentionOutput, Engine

_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
#: Builds by what torch calls the CPU's instruction set, and the one for every CPU.
BUILDS = {"AVX512": "_kernels_avx512", "AVX2": "_kernels_avx2"}
FOR_ALL = "_kernels"
# Of what is called; a build of another version is none.
_VERSION = 1
# How the queries of a set count as one.
_REDUCED = {"max": 0, "sum": 1, "mean": 2}
# Multiplications below which waking another thread takes longer.
_FEW = 1 << 17


class CppEngine(Engine):
    """Reads each key and value once, where it lies."""

    name: ClassVar[str] = "cpp"

    def refusal(self, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cpu":
            return f"a model on the CPU, not on {device}"
        if dtype not in _NAMES:
            return f"a model in {', '.join(_NAMES.values())}, not {dtype}".replace("torch.", "")
        if _library() is None:
            return (
                "it built: no compiler was there when the package was installed, or it was "
                "another version of the package (install it again)"
            )
        return None

    def attend(
        self, qkv: QKV, occupancy: Occupancy, *, probs: bool = False, lse: bool = False
    ) -> AttentionOutput:
        return _attend(qkv, None, occupancy, None, 1, probs, lse)

    def attend_with_mass(
        self, qkv: QKV, occupancy: Occupancy, mass: Tensor, elsewhere: AttentionOutput | None = None
    ) -> Tensor:
        return _attend(qkv, None, occupancy, None, 1, False, False, mass, elsewhere).out

    def attend_pages(
        self, qkv: QKV, pages: Tensor, counts: Tensor, page: int, *, lse: bool = False
    ) -> AttentionOutput:
        return _attend(qkv, pages, None, counts, page, False, lse)

    def best_pages(
        self, q: Tensor, summaries: Tensor, competing: Occupancy, k: int,
        always: tuple[Tensor, Tensor], page: int, *, first: int = 0, narrow: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        (B, H, M, E), Hkv, k = q.shape, summaries.shape[1], min(k, competing.most)
        q = q.to(accumulator(summaries.dtype)).contiguous()
        if summaries.stride()[2:] != (E, 1):
            summaries = summaries.contiguous()
        fixed, tokens = (x.contiguous() for x in always)
        pages = torch.empty((B, H, k + fixed.shape[1]), dtype=torch.int64)
        counts = torch.empty_like(pages)
        _operation(summaries.dtype).best(
            B, H, Hkv, M, E, *summaries.stride()[:2], k, narrow, q.data_ptr(),
            summaries.data_ptr(), competing.tensor.data_ptr(), fixed.shape[1], page, first,
            fixed.data_ptr(), tokens.data_ptr(), counts.data_ptr(), pages.data_ptr(), None,
            torch.get_num_threads() if B * H * M * E * competing.most > _FEW else 1,
        )  # fmt: skip
        return pages, counts

    def raise_to(self, slots: Slots, at: Tensor, new: Tensor, fresh: Tensor | None = None) -> None:
        data, D = slots.data, slots.width // slots.data.itemsize
        new = new.to(data.dtype).contiguous()
        _operation(data.dtype).raise_to(
            len(at), D, at.data_ptr(), _at(fresh), new.data_ptr(), data.data_ptr()
        )

    def rotate(self, x: Tensor, turn: Turn, out: Tensor | None = None) -> Tensor:
        (B, H, N, D), (cos, sin) = x.shape, turn
        out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
        own, angle, to = x.stride(), cos.stride(), out.stride()
        if own[3] != 1 or angle != sin.stride() or angle[3] != 1 or to[3] != 1:
            return super().rotate(x, turn, out)
        assert cos.dtype == accumulator(x.dtype)
        of_row = 0 if cos.shape[0] == 1 else angle[0]
        _operation(x.dtype).rotate(
            B, H, N, D, cos.shape[3], *own[:3], of_row, angle[2], *to[:3],
            x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out

    def put(self, arriving: Sequence[tuple[Slots, Tensor | None]], at: Tensor) -> None:
        sources: list[Tensor] = []
        addresses: list[int] = []
        for slots, new in arriving:
            data, stride = slots.data, slots.width
            if new is None:
                new, stride = slots.empty, 0
            elif new.dtype == data.dtype:
                new = new.contiguous()
            else:
                super().put(((slots, new),), at)
                continue
            sources.append(new)  # until it has been copied
            addresses += (slots.width, stride, new.data_ptr(), data.data_ptr())
        numbers = (ctypes.c_int64 * len(addresses))(*addresses)
        _operation(torch.float32).put(at.shape[0], at.data_ptr(), len(sources), numbers)

    def restamp(
        self, stamps: Slots, probs: Tensor, occupancy: Occupancy, now: Tensor, page: int, how: str,
        alpha: float | None = None,
    ) -> None:  # fmt: skip
        B, H, M, S = probs.shape
        probs, now = probs.contiguous(), now.to(torch.int64).contiguous()
        _operation(probs.dtype).restamp(
            B, H, M, S, stamps.capacity, page, _REDUCED[how], -1 if alpha is None else alpha,
            probs.data_ptr(), occupancy.tensor.data_ptr(), now.data_ptr(), stamps.data.data_ptr(),
        )  # fmt: skip

    def redundancy(self, keys: Tensor, threshold: float) -> Tensor:
        (R, H, S, D), keys = keys.shape, keys.contiguous()
        out = keys.new_empty(R, H, S)
        _operation(keys.dtype).redundancy(R * H, S, D, threshold, keys.data_ptr(), out.data_ptr())
        return out

    def keep_best(self, state: Sequence[Slots], rows: Tensor, worth: Tensor, most: int) -> None:
        if worth.dtype not in (torch.float32, torch.float64):
            super().keep_best(state, rows, worth, most)
            return
        (R, H, S), C, worth = worth.shape, state[0].capacity, worth.contiguous()
        index = torch.empty((R, H, most), dtype=torch.int64)
        operations = _operation(worth.dtype)
        operations.order(R * H, S, most, worth.data_ptr(), index.data_ptr())
        for slots in state:
            operations.move(
                R, H, C, S, most, slots.width, rows.data_ptr(), index.data_ptr(),
                slots.empty.data_ptr(), slots.data.data_ptr(),
            )  # fmt: skip

    def likeliest(
        self, qkv: QKV, occupancy: Occupancy, k: int, *, largest: bool = False
    ) -> tuple[Tensor, Tensor]:
        q, keys, _, sink_logits = qkv
        (B, H, M, D), Hkv, k = q.shape, keys.shape[1], min(k, occupancy.most)
        if keys.stride()[2:] != (D, 1):
            keys = keys.contiguous()
        wide = accumulator(keys.dtype)
        q = q.to(wide).contiguous()
        sinks = None if sink_logits is None else sink_logits.to(wide).contiguous()
        slots = torch.empty((B, H, k), dtype=torch.int64)
        counts = torch.empty_like(slots)
        _operation(keys.dtype).likeliest(
            B, H, Hkv, M, D, *keys.stride()[:2], k, largest, q.data_ptr(), keys.data_ptr(),
            occupancy.tensor.data_ptr(), _at(sinks), slots.data_ptr(), counts.data_ptr(),
            torch.get_num_threads() if B * H * M * D * occupancy.most > _FEW else 1,
        )  # fmt: skip
        return slots, counts

    def lowest(self, worth: Tensor, position: Tensor, stays: Tensor | None = None) -> Tensor:
        if worth.dtype not in (torch.float32, torch.float64):
            return super().lowest(worth, position, stays)
        B, H, S = position.shape
        if worth.shape[1] != H:
            worth = worth.expand(B, H, S)
        if worth.stride(2) != 1:
            worth = worth.contiguous()
        assert position.stride(2) == 1
        if stays is not None:
            stays = stays.to(torch.int64).contiguous()
        slot = torch.empty((B, H, 1), dtype=torch.int64)
        _operation(worth.dtype).lowest(
            B, H, S, *worth.stride()[:2], *position.stride()[:2],
            worth.data_ptr(), position.data_ptr(), _at(stays), slot.data_ptr(),
        )  # fmt: skip
        return slot


def _attend(
    qkv: QKV, pages: Tensor | None, occupancy: Occupancy | None, counts: Tensor | None, page: int,
    probs: bool, lse: bool, mass: Tensor | None = None, elsewhere: AttentionOutput | None = None,
) -> AttentionOutput:  # fmt: skip
    q, k, v, sink_logits = qkv
    (B, H, M, D), Hkv = q.shape, k.shape[1]
    q = q.contiguous()
    # Rows and heads may lie anywhere, the slots of a head follow each other.
    strides = k.stride()
    if strides != v.stride() or strides[2:] != (D, 1):
        k, v = k.contiguous(), v.contiguous()
        strides = k.stride()
    out, wide = torch.empty_like(q), accumulator(q.dtype)
    most = 0 if occupancy is None else occupancy.most
    U, table_row, table_set = 0, 0, 0
    if pages is not None:
        assert counts is not None
        counts, U = counts.to(torch.int64), pages.shape[2]
        # One table may serve all sets of a row, or all rows.
        if pages.stride() != counts.stride() or pages.stride(2) != 1:
            pages, counts = pages.contiguous(), counts.contiguous()
        table_row, table_set, _ = pages.stride()
    probabilities = q.new_empty((B, H, M, most), dtype=wide) if probs else None
    total = q.new_empty((B, H, M), dtype=wide) if lse else None
    sinks = None if sink_logits is None else sink_logits.to(wide).contiguous()
    mass_row, mass_set, other, other_lse = 0, 0, None, None
    if mass is not None:
        assert mass.dtype == wide
        mass_row, mass_set, last_stride = mass.stride()
        assert last_stride == 1
    if elsewhere is not None:
        assert elsewhere.lse is not None
        other, other_lse = elsewhere.out.contiguous(), elsewhere.lse.contiguous()
    work = B * H * M * D * (most or U * page)
    _operation(q.dtype).attend(
        B, H, Hkv, M, D, *strides[:2], U, page, most,
        q.data_ptr(), k.data_ptr(), v.data_ptr(), _at(pages), _at(counts), table_row, table_set,
        None if occupancy is None else occupancy.tensor.data_ptr(), _at(sinks), out.data_ptr(),
        _at(total), _at(probabilities), _at(mass), mass_row, mass_set, _at(other), _at(other_lse),
        torch.get_num_threads() if work > _FEW else 1,
    )  # fmt: skip
    return AttentionOutput(out, probabilities, total)


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


_MOVING = frozenset({"put", "move"})
#: What each operation takes, in order: how many arguments of which type of `ctypes`.
_ARGUMENTS = {
    "attend": "10 int64, 5 void_p, 2 int64, 6 void_p, 2 int64, 2 void_p, 1 int",
    "raise_to": "2 int64, 4 void_p",
    "rotate": "13 int64, 4 void_p",
    "order": "3 int64, 2 void_p",
    "move": "6 int64, 4 void_p",
    "put": "1 int64, 1 void_p, 1 int64, 1 void_p",
    "likeliest": "8 int64, 1 int, 6 void_p, 1 int",
    "restamp": "6 int64, 1 int, 1 double, 4 void_p",
    "redundancy": "3 int64, 1 double, 2 void_p",
    "best": "8 int64, 1 int, 3 void_p, 3 int64, 5 void_p, 1 int",
    "lowest": "7 int64, 4 void_p",
}


def _operation(dtype: torch.dtype) -> SimpleNamespace:
    library = _library()
    assert library is not None, "an engine is asked for its refusal first"
    return library[dtype]


@functools.cache
def _library() -> dict[torch.dtype, SimpleNamespace] | None:
    """The operations by dtype, of the build for this CPU; None where none was built."""
    build = BUILDS.get(torch.backends.cpu.get_cpu_capability(), FOR_ALL)
    return operations(build) or operations(FOR_ALL)


def operations(build: str) -> dict[torch.dtype, SimpleNamespace] | None:
    """The operations by dtype, of one build; None where it was not built of these sources."""
    spec = importlib.util.find_spec(f"attention.engines.{build}")
    if spec is None or spec.origin is None:
        return None
    loaded = ctypes.CDLL(spec.origin)
    version = getattr(loaded, "lil_version", None)
    if version is None or version() != _VERSION:
        return None
    return {dtype: _declared(loaded, name) for dtype, name in _NAMES.items()}


def _declared(loaded: ctypes.CDLL, dtype: str) -> SimpleNamespace:
    declared = SimpleNamespace()
    for name, kinds in _ARGUMENTS.items():
        # What moves bytes only is the same for all.
        operation = getattr(loaded, f"lil_{name}" if name in _MOVING else f"lil_{name}_{dtype}")
        counted = (kind.split() for kind in kinds.split(", "))
        operation.argtypes = [getattr(ctypes, f"c_{x}") for n, x in counted for _ in range(int(n))]
        operation.restype = None
        setattr(declared, name, operation)
    return declared
