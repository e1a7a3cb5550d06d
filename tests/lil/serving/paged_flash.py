"""FlashAttention's paged kernel as its documentation describes it, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: What an engine may pass as well asks for nothing with these values, or with tensors of ones.
NEUTRAL = (None, 0, 0.0, False)


def flash_attn_varlen_func(
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
    num_splits: int = 0,
    **more: Any,
) -> Tensor:
    """Attention of requests one after another, each over the first of its pages.

    Args:
        q, out: (all tokens, Hq, D).
        k, v: (pages, tokens of a page, Hkv, D).
        cu_seqlens_q: where the tokens of each of R requests begin, and the end, (R + 1,).
        seqused_k: keys of each, (R,), its own tokens the last of them.
        block_table: pages of each, (R, pages).
        window_size: keys before and behind a query's own that it reads; -1 for all.
        more: what is not described here, which has to ask for nothing.
    """
    del fa_version, num_splits
    for value in more.values():
        assert (value == 1).all() if isinstance(value, Tensor) else value in NEUTRAL, more
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
        own = torch.arange(new)[:, None] + length - new
        distance = own - torch.arange(length)
        read = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if left >= 0:
            read &= distance <= left
        if right >= 0:
            read &= distance >= -right
        shares = scores.masked_fill(~read, float("-inf")).softmax(-1)
        out[some] = torch.einsum("hgtk,khd->thgd", shares, values).flatten(1, 2)
    return out
