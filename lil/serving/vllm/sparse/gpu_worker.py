"""The worker for GPUs, over vLLM's FlashAttention. It has not run on a GPU so far.

FlashInfer is refused: it gets its tables while the host plans a step, once for all layers, and here
each layer chooses its own blocks on the device. This is a module of its own because vLLM's worker
for CPUs, once it is imported, changes torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from vllm import envs
from vllm.platforms import current_platform
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from attention.contract import Counts
from lil.serving.blocks.layers import PAGE, FlashLayer
from lil.serving.blocks.plans import StepReads
from lil.serving.blocks.policies import BlockPolicy, require
from lil.serving.blocks.ropes import RopeTable
from lil.serving.vllm.sparse.base_worker import SparseWorker
from lil.serving.vllm.sparse.planner import StepPlanner


@dataclass
class FlashMetadata(StepReads, FlashAttentionMetadata):
    """The engine's own, of all tokens or of those that are read in full."""


class FlashBuilder(StepPlanner, FlashAttentionMetadataBuilder):
    """Plans a step for FlashAttention."""

    made = FlashMetadata
    # The tables of a step are made anew, so a graph cannot hold them. What lies between attentions
    # can be captured.
    _cudagraph_support = AttentionCGSupport.NEVER
    # Another group's metadata with another table of blocks would keep the blocks of the first.
    supports_update_block_table = False

    def seen(self, cm: CommonAttentionMetadata) -> Counts:
        # Exact where no drafts are decoded, and a look at `seq_lens` would wait for the device.
        seen: Counts = cm.seq_lens_cpu_upper_bound.numpy().astype(np.int64)
        return seen


class FlashImpl(FlashLayer, FlashAttentionImpl):
    """`FlashLayer` in vLLM."""

    @classmethod
    def of(cls, impl: Any, policy: BlockPolicy, rope: RopeTable | None) -> Self:
        size = "another than 256 under version 4 on this GPU, or flash_attn_version = 2"
        require(not impl.fa4_hd256, "head_size", impl.head_size, size)
        dtype = impl.kv_cache_dtype
        require(not is_quantized_kv_cache(dtype), "kv_cache_dtype", dtype, "one not quantised")
        layer = super().of(impl, policy, rope)
        layer.flash_version = impl.vllm_flash_attn_version
        return layer

    def kernel(self, **arguments: Any) -> Any:
        return flash_attn.flash_attn_varlen_func(**arguments)

    def read_in_full(self, *args: Any) -> None:
        FlashAttentionImpl.forward(self, *args)


class FlashBackend(FlashAttentionBackend):
    """vLLM's FlashAttention whose decode queries read what a policy says."""

    @staticmethod
    def get_name() -> str:
        return "LIL_SPARSE_FLASH"

    @staticmethod
    def get_impl_cls() -> type[FlashImpl]:
        return FlashImpl

    @staticmethod
    def get_builder_cls() -> type[FlashBuilder]:
        return FlashBuilder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        # A head of a block lies in one piece, evenly behind the one before.
        return (KVCacheLayout.LBHNC,)


def check_flash(config: Any, requested: str | None) -> None:
    """Refuse what FlashAttention's form cannot do, or a requested layout of the cache."""
    model, block = config.model_config, config.cache_config.block_size
    require(block % PAGE == 0, "block_size", block, f"a multiple of {PAGE}, the kernel's")
    layout = config.cache_config.kv_cache_layout or requested
    allowed = "HND, VLLM_KV_CACHE_LAYOUT=HND or unset: under others no head has a table of its own"
    require(layout in (None, "HND", KVCacheLayout.LBHNC.name), "kv_cache_layout", layout, allowed)
    ubatching = config.parallel_config.use_ubatching
    require(not ubatching, "enable_dbo", True, "False: a step in parts was not tried")
    others = model.is_mm_prefix_lm or model.is_diffusion or model.rswa_window is not None
    allowed = "one in which every token reads all before it and none behind"
    require(not others, "model", model.model, allowed)


class GPUWorker(SparseWorker):
    """vLLM's GPU worker, whose model has sparse layers."""

    backend = FlashBackend

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        allowed = "cuda; CPUs have lil.serving.vllm.sparse.worker.CPUWorker"
        require(current_platform.is_cuda(), "device", current_platform.device_type, allowed)
        super().__init__(vllm_config, *args, **kwargs)
        check_flash(vllm_config, envs.VLLM_KV_CACHE_LAYOUT)

    def check_layer(self, layer: Any) -> None:
        name, allowed = layer.attn_backend.get_name(), "FLASH_ATTN, --attention-backend FLASH_ATTN"
        require(layer.attn_backend is FlashAttentionBackend, "attention_backend", name, allowed)

    def determine_available_memory(self) -> int:
        available: int = super().determine_available_memory()
        if not self.policy.best or self.cache_config.kv_cache_memory_bytes:
            return available
        # Summaries of blocks lie next to the cache and grow with it.
        spec = self.get_kv_cache_spec()[next(iter(self.sparse_layers))]
        summary: int = 4 * spec.num_kv_heads * self.policy.size(spec.head_size)
        page: int = spec.page_size_bytes
        return available * page // (page + summary)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        # Again, since the layout was settled only now.
        check_flash(self.vllm_config, None)
        if self.policy.best:
            for layer in self.sparse_layers.values():
                layer.impl.remember(layer.kv_cache)
