"""The Triton engine for GPUs: one kernel, split over keys, that reads pages where they lie."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attention.core.step import Occupancy
from attention.engines.engine import QKV, AttentionOutput, Engine

_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
# Oldest NVIDIA GPUs that Triton compiles for, as (major, minor).
_CAPABILITY = (8, 0)
# Bytes of keys that a program looks at at once; several such tiles fit any GPU's shared memory.
_TILE_BYTES = 1 << 14
# Programs wanted for each of a GPU's processors, and more splits than that are not worth joining.
_PROGRAMS, _MOST_SPLITS = 2, 64
# What the interpreter is taken for: enough that short tests split their keys.
_INTERPRETED_PROCESSORS = 8


class TritonEngine(Engine):
    """Reads each key and value once, where it lies; M queries of a set share what is read.

    The keys of a set are split among programs until a GPU is filled, and a second kernel joins the
    splits. Probabilities are computed in a second pass over the keys, from the sums of the first.
    """

    name: ClassVar[str] = "triton"

    def refusal(self, device: torch.device, dtype: torch.dtype) -> str | None:
        if dtype not in _NAMES:
            return f"a model in {', '.join(_NAMES.values())}, not {dtype}".replace("torch.", "")
        if importlib.util.find_spec("triton") is None:
            return "it installed: there is no package triton"
        if device.type != "cuda":
            if device.type == "cpu" and interpreted():
                return None
            return f"a model on a CUDA device, not on {device}"
        return None if interpreted() else _unfit(device)

    def attend(
        self, qkv: QKV, occupancy: Occupancy, *, probs: bool = False, lse: bool = False
    ) -> AttentionOutput:
        lengths = occupancy.tensor
        out, sums = _attend(qkv, None, lengths, 1, occupancy.most)
        probabilities = (
            _probabilities(qkv.q, qkv.k, lengths, occupancy.most, sums) if probs else None
        )
        return AttentionOutput(out, probabilities, sums[2] if lse else None)

    def attend_pages(
        self, qkv: QKV, pages: Tensor, counts: Tensor, page: int, *, lse: bool = False
    ) -> AttentionOutput:
        most = pages.shape[2] * page
        out, sums = _attend(qkv, pages, counts, page, most)
        return AttentionOutput(out, None, sums[2] if lse else None)


class _Tiles(NamedTuple):
    """Sizes of what one program works on at once."""

    ROWS: int
    WIDTH: int
    SLOTS: int


def tiles(M: int, D: int, dtype: torch.dtype) -> _Tiles:
    """Queries, numbers of a key and slots that a program multiplies at once; at least 16 each."""
    width = _power_of_two(D)
    slots = max(16, min(64, _TILE_BYTES // (width * dtype.itemsize)))
    return _Tiles(min(_power_of_two(M), 64), width, slots)


def division(sets: int, most: int, slots: int, processors: int) -> tuple[int, int]:
    """Into how many splits the slots of each set go, and how many each split takes.

    Only what the host knows decides, so that nothing waits for the device.
    """
    blocks = max(1, -(-most // slots))
    wanted = min(-(-_PROGRAMS * processors // sets), blocks, _MOST_SPLITS)
    each = -(-blocks // wanted)
    return -(-blocks // each), each * slots


def _attend(
    qkv: QKV, pages: Tensor | None, counts: Tensor, page: int, most: int
) -> tuple[Tensor, Tensor]:
    """Output, and each query's highest logit, total above it and log-sum-exp, (3, B, H, M)."""
    q, k, v = qkv.q.contiguous(), _rowwise(qkv.k), _rowwise(qkv.v)
    (B, H, M, D), Hkv, kernels = q.shape, k.shape[1], _kernels()
    sink_logits = qkv.sink_logits
    tile = tiles(M, D, q.dtype)
    parts = -(-M // tile.ROWS)
    splits, each = division(B * H * parts, most, tile.SLOTS, _processors(q.device))
    out, sums = torch.empty_like(q), q.new_empty((3, B, H, M), dtype=torch.float32)
    some, some_sums = out, sums
    if splits > 1:
        some = q.new_empty((B, H, splits, M, D), dtype=torch.float32)
        some_sums = q.new_empty((2, B, H, splits, M), dtype=torch.float32)
    table = (counts, 0, 0, 0) if pages is None else (pages, *pages.stride())
    lengths_and_strides = (
        (counts, counts.stride(0), 0, 0) if pages is None else (counts, *counts.stride())
    )
    with _on(q.device):
        kernels.attend_split[B * H, splits, parts](
            q, k, v, *k.stride()[:3], *v.stride()[:3], *table, *lengths_and_strides,
            q if sink_logits is None else sink_logits.contiguous(),
            some, some_sums, most, each,
            H=H, SHARED=H // Hkv, M=M, D=D, PAGE=page, TABLE=pages is not None,
            SINKS=sink_logits is not None, ALONE=splits == 1, WIDEN=_widened(q.dtype),
            **tile._asdict(),
        )  # fmt: skip
        if splits > 1:
            kernels.combine[B * H * M,](
                some, some_sums, out, sums, splits,
                M=M, D=D, WIDTH=tile.WIDTH, SPLITS=_power_of_two(splits, 2),
            )  # fmt: skip
    return out, sums


def _probabilities(q: Tensor, k: Tensor, lengths: Tensor, most: int, sums: Tensor) -> Tensor:
    (B, H, M, D), Hkv, kernels = q.shape, k.shape[1], _kernels()
    q, k = q.contiguous(), _rowwise(k)
    tile = tiles(M, D, q.dtype)
    probs = q.new_empty((B, H, M, most), dtype=torch.float32)
    with _on(q.device):
        kernels.probabilities[B * H, -(-most // tile.SLOTS), -(-M // tile.ROWS)](
            q, k, *k.stride()[:3], lengths, lengths.stride(0), sums, probs, most,
            H=H, SHARED=H // Hkv, M=M, D=D, WIDEN=_widened(q.dtype), **tile._asdict(),
        )  # fmt: skip
    return probs


def _kernels() -> Any:
    """The module of kernels, which imports triton: no other part of the package does."""
    return importlib.import_module("attention.engines.triton_kernels")


def _rowwise(x: Tensor) -> Tensor:
    """Rows, heads and slots may lie anywhere, the numbers of a slot follow each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _power_of_two(n: int, least: int = 16) -> int:
    """The next one; 16 is the least that a GPU's matrix units multiply."""
    return max(least, 1 << (n - 1).bit_length())


def interpreted() -> bool:
    """Whether kernels are computed on the CPU, as triton decides when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def _widened(dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and interpreted()


def _unfit(device: torch.device) -> str | None:
    """What this machine lacks; None if nothing."""
    if not torch.cuda.is_available():
        return "a CUDA device: torch finds none"
    if torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < _CAPABILITY:
            least, has = (".".join(map(str, x)) for x in (_CAPABILITY, capability))
            return f"a GPU of compute capability {least} or higher, not {has}"
    if "CC" not in os.environ and not any(map(shutil.which, ("gcc", "clang"))):
        return "a C compiler, with which triton builds what starts its kernels (CC, gcc or clang)"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        return f"Python's headers, which that takes, too: there is no {headers / 'Python.h'}"
    return None


def _processors(device: torch.device) -> int:
    return _INTERPRETED_PROCESSORS if device.type == "cpu" else _gpu_processors(device)


@functools.cache
def _gpu_processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Kernels start on the current device, which need not be the one tensors are on."""
    return nullcontext() if device.type == "cpu" else torch.cuda.device(device)
