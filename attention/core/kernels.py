"""Grouped attention in plain PyTorch: KV heads are never repeated, nothing of size S is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from attention.core import devices

# Keys of this many elements no longer stay in a CPU's cache. Reading them row by row (K q^T) is
# then twice as fast as q K^T, which wins below.
LARGE = 1 << 21
# Numbers that are added one after the other; more are added in pairs.
FEW_ADDED = 4
# Elements that are sorted sooner than the largest of them are selected.
FEW = 2048
# Elements of the largest temporary in a prefill with probabilities, and of its masks. A GPU gets
# more: its memory holds them, and it would wait for the host to start so many small operations.
BLOCK_ELEMENTS, GPU_TIMES = 1 << 22, 1 << 5
MASK_ELEMENTS = 1 << 25
# Queries of a sliding layer at once, or its window if that is more: they see few other slots.
SLIDING_COLUMNS = 1024

#: Whether prompts are stored without being attended to, in this thread.
LEFT_OUT = ContextVar("left_out", default=False)


@contextmanager
def prompt_attention_left_out() -> Iterator[None]:
    """Let prefills of this thread store their tokens without attending, for benches."""
    outer = LEFT_OUT.set(True)
    try:
        yield
    finally:
        LEFT_OUT.reset(outer)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in: float64 for float64, else float32 (bf16 sums stop growing at 256)."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def group(q: Tensor, Hkv: int, scaling: float) -> Tensor:
    """One query per head (B, Hq, 1, D) as (B, Hkv, G, D), scaled."""
    return q.reshape(len(q), Hkv, -1, q.shape[-1]) * scaling


def logits(q: Tensor, k: Tensor) -> Tensor:
    """(N, G, D) against (N, S, D): (N, G, S)."""
    if k.numel() >= LARGE:
        return torch.bmm(k, q.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(q, k.transpose(1, 2))


def softmax(scores: Tensor, sink_logits: Tensor | None = None) -> Tensor:
    """Probabilities of slots by their scores (..., S), at least float32.

    Sinks, (..., 1), take their share of the probability and give no value.
    """
    wide = accumulator(scores.dtype)
    if sink_logits is None:
        return torch.softmax(scores, dim=-1, dtype=wide)
    sink_column = sink_logits.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, sink_column), dim=-1), dim=-1, dtype=wide)[..., :-1]


def dense(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, last: Tensor, square: bool,
    sink_logits: Tensor | None = None, window: int | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of T queries over everything held, (B, T, Hq, D).

    Args:
        q: (B, Hq, T, D); k and v are (B, Hkv, S, D), oldest token first.
        last: newest slot each query may see, (B or 1, T).
        square: queries and keys are of the same tokens: nothing was held and nothing is padding.
        sink_logits: the model's own logits in addition to the slots', (Hq,), or None.
        window: newest slots a query may see; None for all.
    """
    if LEFT_OUT.get():
        return q.transpose(1, 2)
    if sink_logits is not None:  # the fused kernel has no place for them
        return dense_with_mass(q, k, v, scaling, last, square, None, None, sink_logits, window)[0]
    B, Hq, T, D = q.shape
    Hkv, S = k.shape[1:3]
    # Rows and KV heads become one batch axis and the group the head axis: the keys of a group are
    # then an expanded view, which the fused kernel reads without a copy.
    folded = q.reshape(B * Hkv, Hq // Hkv, T, D)
    keys, values = (
        x.reshape(B * Hkv, 1, S, x.shape[-1]).expand(-1, Hq // Hkv, -1, -1) for x in (k, v)
    )
    attended = partial(functional.scaled_dot_product_attention, scale=scaling)
    with devices.flash_first(q.device):
        if square and (window is None or window >= S):
            out = attended(folded, keys, values, is_causal=True)
            return out.reshape(B, Hq, T, -1).transpose(1, 2)
        most = max(1, MASK_ELEMENTS // (S * (B * Hkv if last.shape[0] > 1 else 1)))
        if window is not None:
            most = min(most, max(window, SLIDING_COLUMNS))
        parts = []
        for columns, slots, seen in _blocks(most, S, last, window):
            mask = seen[:, None].expand(-1, Hkv, -1, -1).flatten(0, 1) if len(seen) > 1 else seen
            part = folded[:, :, columns], keys[:, :, slots], values[:, :, slots]
            parts.append(attended(*part, mask[:, None]))
    return torch.cat(parts, dim=2).reshape(B, Hq, T, -1).transpose(1, 2)


def _blocks(
    most: int, S: int, last: Tensor, window: int | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Columns of at most so many queries, slots they may see, and which of these each one sees."""
    every, T = torch.arange(S, device=last.device), last.shape[1]
    for t in range(0, T, most):
        newest = last[:, t : t + most, None]
        # Where rows differ, those shorter than the longest see earlier slots.
        low = 0 if window is None or len(last) > 1 else max(0, S - T + t - window + 1)
        # Columns that are padding in all rows see one.
        slots = slice(low, max(1, S - T + min(t + most, T)))
        seen = every[slots] <= newest
        if window is not None:
            seen &= every[slots] > newest - window
        yield slice(t, t + most), slots, seen


def dense_with_mass(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, last: Tensor, square: bool,  # noqa: ARG001
    counts: Tensor | None, band: int | None = None, sink_logits: Tensor | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`dense`, and the probability each slot received, at least float32, (B, Hkv, G, S).

    It is summed over queries, and computed in blocks of them so that memory stays bounded.

    Args:
        counts: (B or 1, T), factor of the mass a query gives, 0 or False for padding; None for 1.
        band: only queries less than this many tokens after a slot give it mass; None for all.
    """
    B, Hq, T, D = q.shape
    Hkv, S = k.shape[1:3]
    G, wide = Hq // Hkv, accumulator(q.dtype)
    if LEFT_OUT.get():
        return q.transpose(1, 2), torch.rand(B, Hkv, G, S, dtype=wide, device=q.device)
    out = q.new_empty(B, T, Hq, v.shape[-1])
    mass = torch.zeros(B, Hkv, G, S, dtype=wide, device=q.device)
    grouped = q.reshape(B, Hkv, G, T, D) * scaling
    sink_column = None if sink_logits is None else sink_logits.view(Hkv, G, 1, 1)
    elements = BLOCK_ELEMENTS * (1 if devices.is_synchronous(q.device) else GPU_TIMES)
    for columns, slots, seen in _blocks(max(1, elements // (B * Hq * S)), S, last, window):
        n, keys, values = seen.shape[1], k[:, :, slots], v[:, :, slots]
        block = grouped[:, :, :, columns].reshape(B, Hkv, G * n, D)
        scores = torch.matmul(block, keys.transpose(2, 3)).view(B, Hkv, G, n, -1)
        scores.masked_fill_(~seen[:, None, None], float("-inf"))
        probs = softmax(scores, sink_column)
        mixed = torch.matmul(probs.to(v.dtype).reshape(B, Hkv, G * n, -1), values)
        out[:, columns] = mixed.view(B, Hq, n, -1).transpose(1, 2)
        if counts is not None:
            probs = probs * counts[:, None, None, columns, None]
        if band is not None:
            near = torch.arange(S, device=q.device)[slots] > last[:, columns, None] - band
            probs = probs * near[:, None, None]
        mass[..., slots] += probs.sum(3)
    return out, mass


def added(x: Tensor, dim: int) -> Tensor:
    """Sum over a short axis, in the same order for every slot, so that equal slots stay equal.

    `sum` over an axis that is not the last one adds in an order that depends on the column: sums of
    equal numbers then differ in the last bit, and rounding decides ties.
    """
    n = x.shape[dim]
    if n <= FEW_ADDED:
        first, *others = x.unbind(dim)
        for other in others:
            first = first + other
        return first
    half = n // 2
    paired = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
    if n % 2:
        paired.select(dim, 0).add_(x.select(dim, n - 1))
    return added(paired, dim)


def newest_logits(q: Tensor, k: Tensor, own: bool = True) -> Tensor:
    """Logits of the newest tokens' queries, at least float32, (R, Hkv, G, window, S).

    Queries are scaled, (R, Hkv, G, window, D), keys (R, Hkv, S, D), both oldest first. The last
    keys are the queries' `own`, or older than these: a query sees none that is newer.
    """
    S, window, wide = k.shape[2], q.shape[3], accumulator(k.dtype)
    scores = q.flatten(2, 3).to(wide) @ k.to(wide).transpose(2, 3)
    scores = scores.view(*q.shape[:4], S)
    if own:
        slot = torch.arange(S, device=k.device)
        scores.masked_fill_(slot > slot[S - window :, None], float("-inf"))
    return scores


def over_group(scores: Tensor, how: str, dim: int) -> Tensor:
    """What the query heads along an axis score as one: their "sum", "mean" or "max"."""
    if how == "max":
        return scores.amax(dim)
    total = added(scores, dim)
    return total / scores.shape[dim] if how == "mean" else total


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of the last axis, values and indices; among equals the lower index wins.

    `torch.topk` is an order of magnitude faster than a stable sort of many on CPUs but breaks ties
    at will. Only one between the last taken and the first left matters, so that alone is checked;
    elsewhere the check would wait for the device, and a GPU's sort is cheap.
    """
    n = scores.shape[-1]
    if k >= n:
        return scores, torch.arange(n, device=scores.device).expand(scores.shape)
    if devices.is_synchronous(scores.device) and scores.numel() > FEW:
        values, index = scores.topk(k + 1, dim=-1)
        tie = (values[..., k - 1] == values[..., k]) & values[..., k].isfinite()
        if k == 0 or not bool(tie.any()):
            return values[..., :k], index[..., :k]
    values, index = torch.sort(scores, dim=-1, descending=True, stable=True)
    return values[..., :k], index[..., :k]


def take_pages(x: Sequence[Tensor], pages: Tensor, page: int) -> list[Tensor]:
    """Copy the chosen pages (B, H, U) of several tensors (B, Hkv, C, D), (B * H, U * page, D) each.

    C is a multiple of `page`, H of Hkv: each KV head, or each query head, has a set of pages.
    """
    Hkv, C, D = x[0].shape[1:]
    B, H, U = pages.shape
    first = torch.arange(0, B * Hkv * C // page, C // page, device=pages.device).view(B, Hkv, 1)
    if Hkv < H:
        first = first.repeat_interleave(H // Hkv, dim=1)
    index = (pages + first).reshape(-1)
    taken = (each.reshape(-1, page * D).index_select(0, index) for each in x)
    return [each.view(B * H, U * page, D) for each in taken]
