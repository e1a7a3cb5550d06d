"""The engine for GPUs: decode steps by kernels of Triton, other forwards by torch's operations."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from attention.engines import gpu
from attention.engines.gpu import DeviceCounts, Store, interpreted, unfit
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
