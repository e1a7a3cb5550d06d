"""A sparse layer over FlashAttention's paged kernel, outside an engine.

The kernel is that of `vllm.vllm_flash_attn` on a GPU; elsewhere `described` replaces it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lil.serving.blocks.layers import FlashLayer, flash_pages
from lil.serving.blocks.plans import StepReads
from lil.serving.blocks.policies import BlockPolicy
from lil.serving.blocks.ropes import RopeTable

Kernel = Callable[..., Any]


def kernel_of(device: str) -> Kernel:
    """`flash_attn_varlen_func` on a GPU, and its description elsewhere."""
    if device == "cpu":
        return described
    kernel: Kernel = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
    return kernel


def described(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    seqused_k: Tensor,
    block_table: Tensor,
    out: Tensor,
    softmax_scale: float,
    causal: bool = False,
    window_size: list[int] | None = None,
    softcap: float = 0.0,
    fa_version: int | None = None,
    **more: Any,
) -> Tensor:
    """The kernel as its documentation describes it: R requests, each over the first of its pages.

    Args:
        q, out: (all tokens, Hq, D).
        k, v: (pages, tokens of a page, Hkv, D).
        cu_seqlens_q: where the tokens of each request begin, and the end, (R + 1,).
        seqused_k: keys of each, (R,), its own tokens the last of them.
        block_table: pages of each, (R, pages).
        window_size: keys before and behind a query's own that it reads; -1 for all.
    """
    del fa_version, more  # scales of 1, and what asks for nothing
    assert {x.dtype for x in (cu_seqlens_q, seqused_k, block_table)} == {torch.int32}
    assert all(x.is_contiguous() for x in (cu_seqlens_q, seqused_k))
    assert all(x.stride(-1) == 1 for x in (q, k, v, out, block_table))
    # Copies on Hopper are of whole 16 bytes.
    assert all(s * 2 % 16 == 0 for x in (k, v) for s in x.stride()[:-1])
    starts, lengths = cu_seqlens_q.tolist(), seqused_k.tolist()
    page, Hkv, D = k.shape[1:]
    assert page % 16 == 0
    assert len(block_table) == len(lengths) == len(starts) - 1
    left, right = window_size or (-1, -1)
    for row, length in enumerate(lengths):
        some = slice(starts[row], starts[row + 1])
        new = some.stop - some.start
        assert new <= max_seqlen_q
        assert length <= min(max_seqlen_k, block_table.shape[1] * page)
        pages = block_table[row, : -(-length // page)].long()
        keys, values = (x[pages].reshape(-1, Hkv, D)[:length] for x in (k, v))
        query = q[some].view(new, Hkv, -1, D)
        scores = torch.einsum("thgd,khd->hgtk", query, keys) * softmax_scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(new)[:, None] + length - new - torch.arange(length)
        read = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if left >= 0:
            read &= distance <= left
        if right >= 0:
            read &= distance >= -right
        shares = scores.masked_fill(~read, float("-inf")).softmax(-1)
        out[some] = torch.einsum("hgtk,khd->thgd", shares, values).flatten(1, 2)
    return out


@dataclass
class Metadata(StepReads):
    """What an engine tells its own attention of a step: the tokens that are read in full."""

    num_actual_tokens: int = 0
    query_start_loc: Any = None
    seq_lens: Any = None
    max_query_len: int = 0
    max_seq_len: int = 0
    block_table: Any = None
    slot_mapping: Any = None


class Paged(FlashLayer):
    """The form for GPUs with nothing around it; `calls` keeps the kernel's arguments."""

    call: Kernel
    calls: list[dict[str, Any]]

    def kernel(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return self.call(**arguments)

    def read_in_full(self, *args: Any) -> None:
        query, _, _, kv_cache, meta, output = args[1:7]
        k, v = flash_pages(kv_cache)
        some = slice(meta.num_actual_tokens)
        self.call(
            q=query[some],
            k=k,
            v=v,
            out=output[some],
            cu_seqlens_q=meta.query_start_loc,
            max_seqlen_q=meta.max_query_len,
            seqused_k=meta.seq_lens,
            max_seqlen_k=meta.max_seq_len,
            softmax_scale=self.scale,
            causal=True,
            window_size=[-1, -1],
            block_table=meta.block_table,
            fa_version=self.flash_version,
        )


def layer_of(
    kernel: Kernel, policy: BlockPolicy, rope: RopeTable, Hkv: int, G: int, D: int, **more: Any
) -> Paged:
    """A layer of Hkv heads, each of G query heads of D numbers."""
    impl: dict[str, Any] = dict.fromkeys(("alibi_slopes", "sinks", "kv_sharing_target_layer_name"))
    impl |= {"num_kv_heads": Hkv, "num_queries_per_kv": G, "head_size": D, "scale": D**-0.5}
    impl |= {"flash_version": 3, "logits_soft_cap": 0.0, "call": kernel}
    return Paged.of(SimpleNamespace(**impl | {"calls": []} | more), policy, rope)
