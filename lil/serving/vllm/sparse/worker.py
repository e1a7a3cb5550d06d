"""The worker for CPUs, over the paged kernel of vLLM's CPU build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Before all else of the engine's workers: it puts other functions into torch, which they then hold.
from vllm.v1.worker.cpu_worker import CPUWorker as EngineWorker  # isort: skip

import numpy as np
from torch import Tensor
from vllm import _custom_ops as ops
from vllm import envs
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from attention.contract import Counts
from lil.serving.blocks.layers import SparseLayer
from lil.serving.blocks.plans import ReadPlan, StepReads
from lil.serving.vllm.sparse.base_worker import SparseWorker
from lil.serving.vllm.sparse.planner import StepPlanner


@dataclass
class SparseMetadata(StepReads, CPUAttentionMetadata):
    """The engine's own, of all tokens or of those that are read in full."""


class SparseBuilder(StepPlanner, CPUAttentionMetadataBuilder):
    """Plans a step for the CPU's kernel, which schedules its requests ahead."""

    made = SparseMetadata

    def seen(self, cm: CommonAttentionMetadata) -> Counts:
        seen: Counts = cm.seq_lens.numpy().astype(np.int64)
        return seen

    def prepared(self, plan: ReadPlan) -> Any:
        folded = max(plan.sets, 1)
        return ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(plan.lengths),
            num_heads=self.num_heads // folded,
            num_kv_heads=self.num_kv_heads // folded,
            head_dim=self.head_dim,
            seq_lens=plan.lengths,
            dtype=self.dtype,
            query_start_loc=plan.starts,
            causal=True,
            sliding_window_size=self.policy.window or -1,
            isa=self.isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
            kv_cache_dtype=self.kv_cache_dtype,
        )


class SparseImpl(SparseLayer, CPUAttentionBackendImpl):
    """`SparseLayer` over the CPU's kernel."""

    def read_in_full(self, *args: Any) -> None:
        CPUAttentionBackendImpl.forward(self, *args)

    def read_tables(
        self, query: Tensor, kv_cache: Tensor, output: Tensor, plan: ReadPlan, tables: Tensor
    ) -> None:
        window = self.policy.window
        count, Hkv, block, _ = kv_cache.shape
        keys, values = kv_cache.view(count, Hkv, 2 * block, -1).chunk(2, dim=2)
        ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=keys,
            value_cache=values,
            output=output,
            query_start_loc=plan.starts,
            seq_lens=plan.lengths,
            scale=self.scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1 if window is None else window,
            block_table=tables,
            softcap=self.logits_soft_cap,
            scheduler_metadata=plan.prepared,
            s_aux=None,
            dynamic_causal=None,
            k_scale=1.0,
            v_scale=1.0,
            kv_cache_dtype=self.kv_cache_dtype,
        )


class SparseBackend(CPUAttentionBackend):
    """vLLM's CPU attention whose decode queries read what a policy says."""

    @staticmethod
    def get_name() -> str:
        return "LIL_SPARSE_CPU"

    @staticmethod
    def get_impl_cls() -> type[SparseImpl]:
        return SparseImpl

    @staticmethod
    def get_builder_cls() -> type[SparseBuilder]:
        return SparseBuilder


class CPUWorker(SparseWorker, EngineWorker):
    """vLLM's CPU worker, whose model has sparse layers."""

    backend = SparseBackend
