"""A layer inside an engine: what is read in full is the engine's, the rest a policy's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from attention.errors import InvalidValue
from lil.serving.blocks.plans import ReadPlan, head_by_head
from lil.serving.blocks.policies import BlockPolicy
from lil.serving.blocks.ropes import RopeTable
from lil.serving.blocks.summaries import Summaries

#: Tokens of a block have to be a multiple of this, FlashAttention's.
PAGE = 16


class SparseLayer(ABC):
    """The engine's attention of a layer, whose decode queries read what the policy says.

    It precedes the engine's own class. A block of the cache holds the tokens of a head in one
    piece, so a cache of blocks of Hkv heads is one of Hkv times as many blocks of one head each,
    and a query of Hkv groups is Hkv requests: then every KV head has a table of its own.
    """

    policy: BlockPolicy
    rope: RopeTable | None
    summaries: Summaries | None

    # The engine's own.
    num_kv_heads: int
    num_queries_per_kv: int
    head_size: int
    scale: float

    @classmethod
    def of(cls, impl: Any, policy: BlockPolicy, rope: RopeTable | None) -> Self:
        """A layer in the place of the engine's own, unless a table would compute it wrongly."""
        for field in ("alibi_slopes", "sinks", "kv_sharing_target_layer_name"):
            if getattr(impl, field) is not None:
                raise InvalidValue(field, "some", "none in layers that are sparse: dense_layers")
        layer = cls.__new__(cls)
        layer.__dict__.update(impl.__dict__)
        layer.policy, layer.rope, layer.summaries = policy, rope, None
        return layer

    @abstractmethod
    def read_in_full(self, *args: Any) -> None:
        """The engine's own attention, with the arguments of its `forward`."""

    @abstractmethod
    def read_tables(
        self, query: Tensor, kv_cache: Tensor, output: Tensor, plan: ReadPlan, tables: Tensor
    ) -> None:
        """The engine's kernel over the blocks of the plan's requests, tables (R, U).

        queries and output are (R, heads, D), the cache (blocks, 1 or Hkv, tokens, 2 D).
        """

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """The attention of a step's T tokens, as the engine calls it.

        The cache is (blocks, Hkv, tokens, 2 D). The metadata is the engine's with the fields of
        `StepReads`; None without a cache.
        """
        scales, meta = (output_scale, output_block_scale), attn_metadata
        if meta is not None and self.policy.best:
            T = meta.num_actual_tokens
            self.remember(kv_cache).note(key[:T], meta.slot_mapping[:T], meta.positions[:T])
        if meta is None or meta.sparse is None:
            self.read_in_full(layer, query, key, value, kv_cache, meta, output, *scales)
            return output
        if meta.full is not None:
            q, out = query[meta.full], output[meta.full]
            part = replace(meta, num_actual_tokens=len(q))
            self.read_in_full(layer, q, key, value, kv_cache, part, out, *scales)
            output[meta.full] = out
        T = meta.num_actual_tokens
        self._decode(query[:T], kv_cache, meta.sparse, output[:T])
        return output

    def remember(self, kv_cache: Tensor) -> Summaries:
        """The summaries of a cache's blocks; another number of blocks is another cache."""
        blocks, Hkv, _, numbers = kv_cache.shape
        D = numbers // 2
        if self.summaries is None or self.summaries.blocks != blocks:
            self.summaries = Summaries(self.policy, blocks, Hkv, D, self.rope, kv_cache.device)
            self.summaries.warm(Hkv, self.num_queries_per_kv, D)
        return self.summaries

    def _decode(self, query: Tensor, kv_cache: Tensor, plan: ReadPlan, output: Tensor) -> None:
        q = query if plan.tokens is None else query[plan.tokens]
        out = output if plan.tokens is None else torch.empty_like(q)
        grouped = q.view(len(q), self.num_kv_heads, self.num_queries_per_kv, self.head_size)
        tables = plan.tables(grouped, self.scale, self.summaries)
        folded, cache = out, kv_cache
        if plan.sets > 1:
            folded = out.view(-1, self.num_queries_per_kv, self.head_size)
            q, cache = grouped.flatten(0, 1), head_by_head(kv_cache)
        self.read_tables(q, cache, folded, plan, tables)
        if plan.tokens is not None:
            output[plan.tokens] = out


class FlashLayer(SparseLayer):
    """The form for GPUs, over FlashAttention's `flash_attn_varlen_func` with a table of blocks."""

    flash_version: int | None
    logits_soft_cap: float

    @abstractmethod
    def kernel(self, **arguments: Any) -> Any:
        """Call `flash_attn_varlen_func`."""

    def read_tables(
        self, query: Tensor, kv_cache: Tensor, output: Tensor, plan: ReadPlan, tables: Tensor
    ) -> None:
        k, v = flash_pages(kv_cache)
        window = self.policy.window
        self.kernel(
            q=query,
            k=k,
            v=v,
            out=output,
            cu_seqlens_q=plan.starts,
            max_seqlen_q=1,
            seqused_k=plan.lengths,
            max_seqlen_k=plan.longest,
            softmax_scale=self.scale,
            causal=True,
            # Both ends count from the query and are read as well.
            window_size=[-1, -1] if window is None else [window - 1, 0],
            block_table=tables,
            softcap=self.logits_soft_cap,
            fa_version=self.flash_version,
        )


def flash_pages(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as the kernel takes them, (blocks, tokens, heads, D) each."""
    D = kv_cache.shape[-1] // 2
    k, v = kv_cache.transpose(1, 2).chunk(2, dim=-1)
    if kv_cache.shape[1] > 1:
        return k, v
    # Hopper's copies want strides of whole 16 bytes even where there is one of a kind.
    strides = (k.stride(0), k.stride(1), D, 1)
    return k.as_strided(k.shape, strides), v.as_strided(v.shape, strides)
