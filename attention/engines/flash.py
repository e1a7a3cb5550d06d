"""The engine of flash-attn 2 for GPUs, for the one operation it has; Triton does the others."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, ClassVar

import torch

from attention.core.step import Occupancy
from attention.engines.engine import QKV, AttentionOutput
from attention.engines.triton import TritonEngine

# What its kernels take without copying all keys first.
_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8


class FlashEngine(TritonEngine):
    """Contiguous slots without probabilities and sinks by `flash_attn_with_kvcache`.

    The engine `triton`, which this one is otherwise, does what flash-attn 2 has no operation for:
    probabilities, the model's own sink logits, chosen pages (its pages are multiples of
    256 and shared by all heads), and head sizes that are no multiple of 8 or above 256.
    """

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

    def attend(
        self, qkv: QKV, occupancy: Occupancy, *, probs: bool = False, lse: bool = False
    ) -> AttentionOutput:
        B, H, M, D = qkv.q.shape
        if probs or qkv.sink_logits is not None or D % _HEAD_MULTIPLE or D > _LARGEST_HEAD:
            return super().attend(qkv, occupancy, probs=probs, lse=lse)
        # (B, slots, H, D), views: its rows, slots and heads may lie anywhere. Into how many splits
        # keys go it finds from the slots it is shown, so those behind the longest row are left out.
        keys, values = (x[:, :, : occupancy.most].transpose(1, 2) for x in (qkv.k, qkv.v))
        result = _flash_attn().flash_attn_with_kvcache(
            qkv.q.reshape(B, 1, H * M, D),
            keys,
            values,
            cache_seqlens=occupancy.tensor.to(torch.int32),
            softmax_scale=1.0,
            return_softmax_lse=lse,
        )
        out, total = result if lse else (result, None)
        total = None if total is None else total.reshape(B, H, M)
        return AttentionOutput(out.reshape(B, H, M, D), None, total)


def _flash_attn() -> Any:
    return importlib.import_module("flash_attn")
