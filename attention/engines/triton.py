"""The engine for GPUs: decode steps by kernels of Triton, other forwards by torch's operations."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from attention.core.kernels import dense, prompts_are_read
from attention.engines import gpu
from attention.engines.gpu import DeviceCounts, Store, choices, interpreted, unfit
from attention.engines.torch_engine import TorchEngine

_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}


class TritonEngine(TorchEngine):
    """`Layer.step` where layers have it, see `attention.engines.gpu`; else the plain engine."""

    name: ClassVar[str] = "triton"
    on_device: ClassVar[bool] = True

    def step(
        self, counts: DeviceCounts, store: Store, q: Tensor, k: Tensor, v: Tensor, scaling: float
    ) -> Tensor:
        return gpu.attend(counts, store, q, k, v, scaling)

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

    def dense_with_mass(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scaling: float,
        last: Tensor,
        square: bool,
        counts: Tensor | None,
        band: int | None = None,
        sink_logits: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if not prompts_are_read():
            return super().dense_with_mass(q, k, v, scaling, last, square, counts, band)
        out, lengths = dense(q, k, v, scaling, last, square), last[:, -1] + 1
        weights = torch.ones_like(last[:1]) if counts is None else counts
        mass, lse = choices().column_mass(
            q, k, scaling, lengths.to(torch.int32).expand(len(q)).contiguous(),
            weights.to(torch.float32).contiguous(), band, sink_logits,
        )  # fmt: skip
        if sink_logits is not None:  # they take their share of the probability, and give nothing
            share = 1 - torch.exp(sink_logits.to(torch.float32)[:, None] - lse)
            out = (out * share.transpose(1, 2)[..., None]).to(out.dtype)
        return out, mass
