"""The attention of sparse layers on a GPU: vLLM's FlashAttention, whose kernel reads the blocks.

FlashInfer is refused: it is told of its tables while the host plans a step, once for all layers,
and here each layer chooses its own blocks on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
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
from attention.errors import InvalidValue
from lil.serving.blocks import PAGE, BlockPolicy, FlashLayer, RopeTable, StepReads
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
        found: Counts = cm.seq_lens_cpu_upper_bound.numpy().astype(np.int64)
        return found


class FlashImpl(FlashLayer, FlashAttentionImpl):
    """`FlashLayer` in vLLM."""

    @classmethod
    def of(cls, impl: Any, policy: BlockPolicy, rope: RopeTable | None) -> Self:
        if impl.fa4_hd256:
            allowed = "another than 256 under version 4 on this GPU, or flash_attn_version = 2"
            raise InvalidValue("head_size", impl.head_size, allowed)
        if is_quantized_kv_cache(impl.kv_cache_dtype):
            raise InvalidValue("kv_cache_dtype", impl.kv_cache_dtype, "one that is not quantised")
        made = super().of(impl, policy, rope)
        made.flash_version = impl.vllm_flash_attn_version
        made.flash_splits = 1 if impl.batch_invariant_enabled else 0
        return made

    def kernel(self, **arguments: Any) -> Any:
        return flash_attn.flash_attn_varlen_func(**arguments)

    def read_in_full(self, *args: Any) -> None:
        FlashAttentionImpl.forward(self, *args)


class FlashBackend(FlashAttentionBackend):
    """vLLM's FlashAttention whose decode queries read what a policy says."""

    #: The layouts in which a head of a block lies in one piece, evenly behind the one before.
    layouts: ClassVar[tuple[KVCacheLayout, ...]] = (KVCacheLayout.LBHNC,)

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
        return cls.layouts


def check_flash(config: Any, requested: str | None) -> None:
    """Refuse what FlashAttention's form cannot do or nobody has seen to be right.

    Args:
        config: of the engine.
        requested: the layout of the cache that somebody asked for, VLLM_KV_CACHE_LAYOUT.

    Raises:
        InvalidValue: one of it.
    """
    model, parallel = config.model_config, config.parallel_config
    block, layout = config.cache_config.block_size, config.cache_config.kv_cache_layout
    page = f"a multiple of {PAGE}, the kernel's: --block-size"
    even = "HND, VLLM_KV_CACHE_LAYOUT=HND or unset: under others the heads of blocks are not evenly"
    refused: list[tuple[str, Any, bool, str]] = [
        ("block_size", block, bool(block % PAGE), page),
        (
            "kv_cache_layout",
            layout or requested,
            (layout or requested) not in (None, "HND", *(one.name for one in FlashBackend.layouts)),
            even + " spaced, and none has a table of its own",
        ),
        ("enable_dbo", True, parallel.use_ubatching, "False: a step in parts was not tried"),
        (
            "model",
            model.model,
            bool(model.is_mm_prefix_lm or model.is_diffusion or model.rswa_window is not None),
            "one in which every token reads all before it and none behind",
        ),
    ]
    for field, value, wrong, allowed in refused:
        if wrong:
            raise InvalidValue(field, value, allowed)
