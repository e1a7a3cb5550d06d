"""The Triton engine for GPUs: one kernel, split over keys, that reads pages where they lie."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, ClassVar

import torch
from torch import Tensor

from attention.core.step import Occupancy
from attention.engines.engine import QKV, AttentionOutput, Engine
from attention.engines.gpu import interpreted, on, power_of_two, processors, tiles, unfit, widened

_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
# Programs wanted for each of a GPU's processors, and more splits than that are not worth joining.
_PROGRAMS, _MOST_SPLITS = 2, 64


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
        return None if interpreted() else unfit(device)

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
    splits, each = division(B * H * parts, most, tile.SLOTS, processors(q.device))
    out, sums = torch.empty_like(q), q.new_empty((3, B, H, M), dtype=torch.float32)
    some, some_sums = out, sums
    if splits > 1:
        some = q.new_empty((B, H, splits, M, D), dtype=torch.float32)
        some_sums = q.new_empty((2, B, H, splits, M), dtype=torch.float32)
    table = (counts, 0, 0, 0) if pages is None else (pages, *pages.stride())
    lengths_and_strides = (
        (counts, counts.stride(0), 0, 0) if pages is None else (counts, *counts.stride())
    )
    with on(q.device):
        kernels.attend_split[B * H, splits, parts](
            q, k, v, *k.stride()[:3], *v.stride()[:3], *table, *lengths_and_strides,
            q if sink_logits is None else sink_logits.contiguous(),
            some, some_sums, most, each,
            H=H, SHARED=H // Hkv, M=M, D=D, PAGE=page, TABLE=pages is not None,
            SINKS=sink_logits is not None, ALONE=splits == 1, WIDEN=widened(q.dtype),
            **tile._asdict(),
        )  # fmt: skip
        if splits > 1:
            kernels.combine[B * H * M,](
                some, some_sums, out, sums, splits,
                M=M, D=D, WIDTH=tile.WIDTH, SPLITS=power_of_two(splits, 2),
            )  # fmt: skip
    return out, sums


def _probabilities(q: Tensor, k: Tensor, lengths: Tensor, most: int, sums: Tensor) -> Tensor:
    (B, H, M, D), Hkv, kernels = q.shape, k.shape[1], _kernels()
    q, k = q.contiguous(), _rowwise(k)
    tile = tiles(M, D, q.dtype)
    probs = q.new_empty((B, H, M, most), dtype=torch.float32)
    with on(q.device):
        kernels.probabilities[B * H, -(-most // tile.SLOTS), -(-M // tile.ROWS)](
            q, k, *k.stride()[:3], lengths, lengths.stride(0), sums, probs, most,
            H=H, SHARED=H // Hkv, M=M, D=D, WIDEN=widened(q.dtype), **tile._asdict(),
        )  # fmt: skip
    return probs


def _kernels() -> Any:
    """The module of kernels, which imports triton: no other part of the package does."""
    return importlib.import_module("attention.engines.triton_kernels")


def _rowwise(x: Tensor) -> Tensor:
    """Rows, heads and slots may lie anywhere, the numbers of a slot follow each other."""
    return x if x.stride(-1) == 1 else x.contiguous()
