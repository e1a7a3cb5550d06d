"""The engines for GPUs: decode steps by kernels of Triton or of flash-attn 2, the rest by torch."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.core import devices
from attention.core.kernels import LEFT_OUT, dense, dense_with_mass
from attention.core.step import Counts
from attention.engines import gpu
from attention.engines.engine import Engine
from attention.engines.gpu import DeviceCounts, Pages, Store, choices, interpreted, unfit


class TritonEngine(Engine):
    """`Layer.step` where layers have it, see `attention.engines.gpu`; else the plain engine."""

    name: ClassVar[str] = "triton"
    on_device: ClassVar[bool] = True

    def refusal(self, device: torch.device, dtype: torch.dtype) -> str | None:
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"a model in float16, bfloat16, float32, not {dtype}".replace("torch.", "")
        if importlib.util.find_spec("triton") is None:
            return "it installed: there is no package triton"
        if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
            return f"a model on a CUDA device, not on {device}"
        return None if interpreted() else unfit(device)

    @staticmethod
    def dense_with_mass(
        q: Tensor, k: Tensor, v: Tensor, scaling: float, last: Tensor, square: bool,
        counts: Tensor | None, band: int | None = None, sink_logits: Tensor | None = None,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if window is not None or LEFT_OUT.get():
            how = (band, sink_logits, window)
            return dense_with_mass(q, k, v, scaling, last, square, counts, *how)
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


class FlashEngine(TritonEngine):
    """flash-attn's full attention in decode steps, and prompts of ragged rows without padding."""

    name: ClassVar[str] = "flash"

    def refusal(self, device: torch.device, dtype: torch.dtype) -> str | None:
        if dtype not in (torch.float16, torch.bfloat16):
            return f"a model in float16 or bfloat16, not {dtype}".replace("torch.", "")
        if device.type != "cuda":
            return f"a model on a CUDA device, not on {device}"
        if importlib.util.find_spec("flash_attn") is None:
            return "it installed: there is no package flash_attn"
        try:
            _flash_attn()
        except (ImportError, OSError) as error:  # built for another torch or another CUDA
            first = str(error).partition("\n")[0]
            return f"a package flash_attn that can be imported: {first}"
        reason = super().refusal(device, dtype)
        return None if reason is None else f"the engine triton too, which expects {reason}"

    @staticmethod
    def step(
        counts: DeviceCounts, store: Store, q: Tensor, k: Tensor, v: Tensor, scaling: float,
        pages: Pages | None = None,
    ) -> Tensor:  # fmt: skip
        more = pages, store.position, store.queries, store.sink_logits
        if store.place != "append" or any(x is not None for x in more) or not _fits(q):
            return gpu.attend(counts, store, q, k, v, scaling, pages)
        R = len(q)
        # (rows, slots, H, D), views; the new token is stored behind those in use.
        keys, values = (x[:R].transpose(1, 2) for x in (store.keys, store.values))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out: Tensor = _flash_attn().flash_attn_with_kvcache(
            q, keys, values, k, v, cache_seqlens=store.lengths[:R], softmax_scale=scaling
        )
        return out

    def ragged_prompt(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, new: Counts
    ) -> Tensor | None:
        if not _fits(q):
            return None
        (B, Hq, T, D), most = q.shape, int(new.max())
        real = np.flatnonzero(np.arange(T) >= (T - new)[:, None])
        index = devices.put(real, q.device)
        ends = devices.put(np.append(0, new.cumsum()), q.device, torch.int32)
        tokens = (x.transpose(1, 2).flatten(0, 1).index_select(0, index) for x in (q, k, v))
        out = _flash_attn().flash_attn_varlen_func(
            *tokens, ends, ends, most, most, softmax_scale=scaling, causal=True
        )
        return q.new_zeros(B * T, Hq, D).index_copy_(0, index, out).view(B, T, Hq, D)


def _fits(q: Tensor) -> bool:
    """Whether flash-attn takes heads of this size, without copying all keys first."""
    return q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


def _flash_attn() -> Any:
    return importlib.import_module("flash_attn")
