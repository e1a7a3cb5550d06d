"""The attention of sparse layers on vLLM's CPU build, whose own paged kernel reads the blocks.

The kernel has one table of blocks per request. A block of its cache holds the tokens of a head in
one piece, so a cache of blocks of Hkv heads is one of Hkv times as many blocks of one head each,
and a query of Hkv groups is Hkv requests: then every KV head has a table of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
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

from attention.contract import Counts, top
from attention.errors import InvalidValue
from lil.serving.blocks import WHOLE, BlockPolicy, Queries, RopeTable, Summaries, queries, table
from lil.serving.vllm.sparse.rows import ReadLog, StepRows
from lil.serving.vllm.sparse.settings import policy_for


@dataclass
class Sparse:
    """The queries of a step that read less than everything, as the kernel takes them.

    Attributes:
        tokens: where they lie among the step's tokens, (N,); None where all tokens are such.
        positions: of the queries, (N,).
        blocks: of the cache, (N, U), those of the gap yet to be chosen.
        first, best: the columns of those.
        gap: blocks of the cache in the gaps, (N, P).
        beyond: where gaps are shorter than P, (N, 1, P).
        sets: choices of a query; 0 where none is made.
        starts, lengths, plan: the queries as requests of the kernel, one per set.
    """

    tokens: Tensor | None
    positions: Tensor
    blocks: Tensor
    first: int
    best: int
    gap: Tensor
    beyond: Tensor
    sets: int
    starts: Tensor
    lengths: Tensor
    plan: Tensor


@dataclass
class SparseMetadata(CPUAttentionMetadata):
    """The engine's own, of all tokens or of those that are read in full.

    Attributes:
        positions: of all tokens, (T,).
        full: the tokens that are read in full, where not all are, (F,).
        sparse: the others; None for none.
    """

    positions: Tensor | None = None
    full: Tensor | None = None
    sparse: Sparse | None = None


class SparseBuilder(CPUAttentionMetadataBuilder):
    """Plans a step: all of it but the choices follows from how many tokens requests have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.policy: BlockPolicy = policy_for(self.vllm_config)
        #: Set by the worker: what the runner knows of a step's rows, and who counts what they read,
        #: which one builder of a worker tells.
        self.rows: StepRows | None = None
        self.reads: ReadLog | None = None
        if self.policy.block != self.block_size:
            allowed = f"{self.policy.block}, the block that the server was started with"
            raise InvalidValue("block", self.block_size, allowed)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> SparseMetadata:
        cm = common_attn_metadata
        starts = cm.query_start_loc_cpu.numpy().astype(np.int64)
        new = np.diff(starts)
        seen = cm.seq_lens.numpy().astype(np.int64)
        assert self.rows is not None
        prompts = np.where(self.rows.whole(len(new)), WHOLE, self.rows.prompts(len(new)))
        found = queries(self.policy, seen - new, new, prompts)
        if self.reads is not None:
            self.reads.step(self.rows, seen - new, new)
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1] - (seen - new), new)
        part = cm if not len(found) else _only_full(cm, found, new, seen)
        built = super().build(common_prefix_len, part, fast_build)
        given = {f.name: getattr(built, f.name) for f in fields(CPUAttentionMetadata)}
        full = None
        if len(found) and found.full.any():
            kept = np.ones(int(starts[-1]), dtype=bool)
            kept[found.token] = False
            full = torch.from_numpy(np.flatnonzero(kept))
        if len(found):
            given |= {"num_actual_tokens": cm.num_actual_tokens, "slot_mapping": cm.slot_mapping}
        return SparseMetadata(
            **given,
            positions=torch.from_numpy(positions),
            full=full,
            sparse=self._sparse(found, cm) if len(found) else None,
        )

    def _sparse(self, found: Queries, cm: CommonAttentionMetadata) -> Sparse:
        policy, Hkv = self.policy, self.num_kv_heads
        numbers, first, best = table(policy, found.seen)
        row = torch.from_numpy(found.row)
        owned = cm.block_table_tensor[row].long()
        start, end = policy.gap(found.seen)
        width = int((end - start).max()) if best else 0
        number = start[:, None] + np.arange(width)
        beyond = torch.from_numpy(number >= end[:, None])[:, None]
        gap = owned.gather(1, torch.from_numpy(np.minimum(number, end[:, None] - 1)))
        sets = policy.sets(Hkv) if best else 0
        folded = max(sets, 1)
        lengths = torch.from_numpy(policy.tokens_listed(found.seen)).to(torch.int32)
        lengths = lengths.repeat_interleave(folded)
        starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
        plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths),
            num_heads=self.num_heads // folded,
            num_kv_heads=Hkv // folded,
            head_dim=self.head_dim,
            seq_lens=lengths,
            dtype=self.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=policy.window or -1,
            isa=self.isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
            kv_cache_dtype=self.kv_cache_dtype,
        )
        return Sparse(
            tokens=torch.from_numpy(found.token) if found.full.any() else None,
            positions=torch.from_numpy(found.seen - 1),
            blocks=owned.gather(1, torch.from_numpy(numbers)),
            first=first,
            best=best,
            gap=gap,
            beyond=beyond,
            sets=sets,
            starts=starts,
            lengths=lengths,
            plan=plan,
        )


def _only_full(cm: Any, found: Queries, new: Counts, seen: Counts) -> Any:
    """The step without its sparse queries, which are the last tokens of their rows."""
    rows = torch.from_numpy(found.full > 0)
    kept = found.full[found.full > 0]
    starts = np.concatenate(([0], np.cumsum(kept))).astype(np.int32)
    lengths = (seen - new + found.full)[found.full > 0].astype(np.int32)
    return cm.replace(
        query_start_loc=torch.from_numpy(starts),
        query_start_loc_cpu=torch.from_numpy(starts),
        seq_lens=torch.from_numpy(lengths),
        num_reqs=len(kept),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(kept.max(initial=0)),
        max_seq_len=int(lengths.max(initial=0)),
        block_table_tensor=cm.block_table_tensor[: len(rows)][rows],
    )


class SparseImpl(CPUAttentionBackendImpl):
    """The engine's attention of a layer; decode queries read what the policy says.

    Args of `of`:
        impl: the engine's own, which it takes the place of.
        policy: what decode queries read.
        rope: turns keys, where the policy asks for it.
    """

    policy: BlockPolicy
    rope: RopeTable | None
    summaries: Summaries | None

    @classmethod
    def of(cls, impl: CPUAttentionBackendImpl, policy: BlockPolicy, rope: RopeTable | None) -> Self:
        """One with all that the engine's own has.

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

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: SparseMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        scales = (output_scale, output_block_scale)
        meta = attn_metadata
        if meta is None:
            super().forward(layer, query, key, value, kv_cache, meta, output, *scales)
            return output
        T = meta.num_actual_tokens
        if self.policy.best:
            assert meta.positions is not None
            if self.summaries is None:
                blocks, Hkv, _, both = kv_cache.shape
                self.summaries = Summaries(self.policy, blocks, Hkv, both // 2, self.rope)
            self.summaries.note(key[:T], meta.slot_mapping[:T], meta.positions[:T])
        if meta.sparse is None:
            super().forward(layer, query, key, value, kv_cache, meta, output, *scales)
            return output
        if meta.full is not None:
            q, out = query[meta.full], output[meta.full]
            self._attend(
                layer, q, kv_cache, out, meta.query_start_loc, meta.seq_lens, meta.block_table,
                meta.scheduler_metadata, self.sliding_window,
            )  # fmt: skip
            output[meta.full] = out
        self._decode(layer, query[:T], kv_cache, meta.sparse, output[:T])
        return output

    def _decode(
        self, layer: Any, query: Tensor, kv_cache: Tensor, sparse: Sparse, output: Tensor
    ) -> None:
        q = query if sparse.tokens is None else query[sparse.tokens]
        out = output if sparse.tokens is None else torch.empty_like(q)
        Hkv = self.num_kv_heads
        blocks, cache, folded_q, folded_out = sparse.blocks, kv_cache, q, out
        if sparse.sets:
            blocks = self._choose(q, sparse)  # (N, sets, U)
            if sparse.sets > 1:
                blocks = blocks * Hkv + torch.arange(Hkv)[:, None]
                cache = _head_by_head(kv_cache)
                folded_q = q.reshape(-1, self.num_queries_per_kv, self.head_size)
                folded_out = out.view(-1, self.num_queries_per_kv, self.head_size)
            blocks = blocks.flatten(0, 1)
        window = self.policy.window
        self._attend(
            layer, folded_q, cache, folded_out, sparse.starts, sparse.lengths,
            blocks.to(torch.int32), sparse.plan, -1 if window is None else window,
        )  # fmt: skip
        if sparse.tokens is not None:
            output[sparse.tokens] = out

    def _choose(self, q: Tensor, sparse: Sparse) -> Tensor:
        """The blocks of the cache that each set of each query reads, (N, sets, U)."""
        assert self.summaries is not None
        grouped = q.view(len(q), self.num_kv_heads, -1, self.head_size).float() * self.scale
        worth = self.summaries.worth(grouped, sparse.positions, sparse.gap)
        worth = worth.masked_fill(sparse.beyond, float("-inf"))
        _, index = top(worth, sparse.best)
        each = sparse.blocks[:, None].expand(-1, sparse.sets, -1).clone()
        best = sparse.gap[:, None].expand(-1, sparse.sets, -1).gather(2, index)
        each[:, :, sparse.first : sparse.first + sparse.best] = best
        return each

    def _attend(
        self,
        layer: Any,
        query: Tensor,
        kv_cache: Tensor,
        output: Tensor,
        starts: Tensor,
        lengths: Tensor,
        blocks: Tensor,
        plan: Tensor,
        window: int,
    ) -> None:
        """The engine's kernel over these blocks of the cache."""
        count, Hkv, block, _ = kv_cache.shape
        keys, values = kv_cache.view(count, Hkv, 2 * block, -1).chunk(2, dim=2)
        ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=keys,
            value_cache=values,
            output=output,
            query_start_loc=starts,
            seq_lens=lengths,
            scale=self.scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=window,
            block_table=blocks,
            softcap=self.logits_soft_cap,
            scheduler_metadata=plan,
            s_aux=None,
            dynamic_causal=None,
            k_scale=layer._k_scale_float,
            v_scale=layer._v_scale_float,
            kv_cache_dtype=self.kv_cache_dtype,
        )


def _head_by_head(kv_cache: Tensor) -> Tensor:
    """A cache of blocks of Hkv heads as one of Hkv times as many blocks of one head each.

    Raises:
        InvalidValue: the heads of a block and the blocks do not follow each other evenly.
    """
    count, Hkv, block, both = kv_cache.shape
    if kv_cache.stride(0) != Hkv * kv_cache.stride(1):
        allowed = "one in which the heads of all blocks lie evenly spaced"
        raise InvalidValue("kv_cache_layout", tuple(kv_cache.stride()), allowed)
    strides = (kv_cache.stride(1), kv_cache.stride(1), kv_cache.stride(2), kv_cache.stride(3))
    return kv_cache.as_strided((count * Hkv, 1, block, both), strides)


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
