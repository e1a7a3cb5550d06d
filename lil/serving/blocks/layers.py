"""A layer inside an engine: what is read in full is the engine's, the rest a policy's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from attention.errors import InvalidValue
from lil.serving.blocks.plans import ReadPlan, head_by_head
from lil.serving.blocks.policy import BlockPolicy
from lil.serving.blocks.ropes import RopeTable
from lil.serving.blocks.summaries import Summaries


class SparseLayer(ABC):
    """The engine's attention of a layer; decode queries read what the policy says.

    It stands before the engine's own class. A block of the cache holds the tokens of a head in one
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
        """One with all that the engine's own has.

        Args:
            impl: the engine's own, which it takes the place of.
            policy: what decode queries read.
            rope: turns keys, where the policy asks for it.

        Raises:
            InvalidValue: a layer that a table of some blocks would compute wrongly.
        """
        for field, value, wrong in (
            ("alibi_slopes", "some", impl.alibi_slopes is not None),
            ("sinks", "some", impl.sinks is not None),
            (
                "kv_sharing_target_layer_name",
                impl.kv_sharing_target_layer_name,
                impl.kv_sharing_target_layer_name is not None,
            ),
        ):
            if wrong:
                raise InvalidValue(field, value, "none in layers that are sparse: dense_layers")
        made = cls.__new__(cls)
        made.__dict__.update(impl.__dict__)
        made.policy, made.rope, made.summaries = policy, rope, None
        return made

    @abstractmethod
    def read_in_full(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        meta: Any,
        output: Tensor,
        *scales: Tensor | None,
    ) -> None:
        """The engine's own attention.

        Args:
            layer, query, key, value, kv_cache, meta, output, scales: those of `forward`.
        """

    @abstractmethod
    def read_tables(
        self,
        layer: Any,
        query: Tensor,
        kv_cache: Tensor,
        output: Tensor,
        plan: ReadPlan,
        tables: Tensor,
    ) -> None:
        """The engine's kernel over some blocks.

        Args:
            layer: of the engine.
            query, output: (R, heads, D).
            kv_cache: (blocks, 1 or Hkv, tokens, 2 D).
            plan: of the requests.
            tables: their blocks, (R, U).
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
        """The attention of a step's tokens, as the engine asks for it.

        Args:
            layer: of the engine.
            query, output: (T, Hq, D).
            key, value: (T, Hkv, D).
            kv_cache: (blocks, Hkv, tokens, 2 D).
            attn_metadata: the engine's with the fields of `StepReads`; None without a cache.
            output_scale, output_block_scale: the engine's.
        """
        scales = (output_scale, output_block_scale)
        meta = attn_metadata
        if meta is None:
            self.read_in_full(layer, query, key, value, kv_cache, meta, output, *scales)
            return output
        T = meta.num_actual_tokens
        if self.policy.best:
            assert meta.positions is not None
            self.remember(kv_cache).note(key[:T], meta.slot_mapping[:T], meta.positions[:T])
        if meta.sparse is None:
            self.read_in_full(layer, query, key, value, kv_cache, meta, output, *scales)
            return output
        if meta.full is not None:
            q, out = query[meta.full], output[meta.full]
            part = replace(meta, num_actual_tokens=len(q))
            self.read_in_full(layer, q, key, value, kv_cache, part, out, *scales)
            output[meta.full] = out
        self._decode(layer, query[:T], kv_cache, meta.sparse, output[:T])
        return output

    def remember(self, kv_cache: Tensor) -> Summaries:
        """What is remembered of the blocks of a cache.

        Args:
            kv_cache: (blocks, Hkv, tokens, 2 D); another number of blocks is another cache.
        """
        blocks, Hkv, _, both = kv_cache.shape
        if self.summaries is None or self.summaries.blocks != blocks:
            self.summaries = Summaries(
                self.policy, blocks, Hkv, both // 2, self.rope, kv_cache.device
            )
            self.summaries.warm(Hkv, self.num_queries_per_kv, both // 2)
        return self.summaries

    def _decode(
        self, layer: Any, query: Tensor, kv_cache: Tensor, plan: ReadPlan, output: Tensor
    ) -> None:
        q = query if plan.tokens is None else query[plan.tokens]
        out = output if plan.tokens is None else torch.empty_like(q)
        grouped = q.view(len(q), self.num_kv_heads, self.num_queries_per_kv, self.head_size)
        tables = plan.tables(grouped, self.scale, self.summaries)
        if plan.sets > 1:
            folded = out.view(-1, self.num_queries_per_kv, self.head_size)
            cache, q = head_by_head(kv_cache), grouped.flatten(0, 1)
        else:
            folded, cache = out, kv_cache
        self.read_tables(layer, q, cache, folded, plan, tables)
        if plan.tokens is not None:
            output[plan.tokens] = out
