"""The plain engine: torch operations, on every device and dtype; the oracle of the others."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from attention.core.kernels import accumulator, hide, logits, softmax, spread, take_pages
from attention.core.step import Occupancy
from attention.engines.engine import QKV, AttentionOutput, Engine


class TorchEngine(Engine):
    """Scores, softmax and the sum of values one after the other; chosen pages are copied first."""

    name: ClassVar[str] = "torch"

    def refusal(self, device: torch.device, dtype: torch.dtype) -> str | None:  # noqa: ARG002
        return None

    def attend(
        self, qkv: QKV, occupancy: Occupancy, *, probs: bool = False, lse: bool = False
    ) -> AttentionOutput:
        keys, values = (x.flatten(0, 1)[:, : occupancy.most] for x in (qkv.k, qkv.v))
        result = _attend(qkv, keys, values, occupancy.hidden, lse)
        return result if probs else result._replace(probs=None)

    def attend_pages(
        self, qkv: QKV, pages: Tensor, counts: Tensor, page: int, *, lse: bool = False
    ) -> AttentionOutput:
        keys, values = take_pages((qkv.k, qkv.v), pages, page)
        hidden = torch.arange(page, device=pages.device) >= counts[..., None]
        result = _attend(qkv, keys, values, hidden.flatten(2)[:, :, None], lse)
        nothing = (counts == 0).all(-1)[..., None, None]
        return result._replace(out=result.out.masked_fill(nothing, 0), probs=None)


def _attend(
    qkv: QKV, keys: Tensor, values: Tensor, hidden: Tensor | None, lse: bool
) -> AttentionOutput:
    """Attention to these slots of the same sets, (B * H, S, D), rather than all of them."""
    q, queries = qkv.q, qkv.q.flatten(0, 1)
    scores = hide(logits(queries, keys), hidden)
    sinks = spread(qkv.sink_logits, queries)
    probs = softmax(scores, sinks)
    total = None
    if lse:
        total = torch.logsumexp(scores.to(accumulator(scores.dtype)), -1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks[..., 0].to(total.dtype))
        probs = probs.masked_fill(total.isneginf()[..., None], 0)  # nothing to read
    out = torch.bmm(probs.to(values.dtype), values).view(q.shape)
    shape = q.shape[:3]
    return AttentionOutput(
        out, probs.view(*shape, -1), None if total is None else total.view(shape)
    )
