"""The Triton kernels of the engine `triton`; importing this imports triton.

A set is what one KV head of one row reads, and M queries read it together: a program takes a part
of the keys of one set (a split), for all of its queries at once, so that each key is read once.
Sums are in float32. Lengths, tables and strides that change from step to step are not specialised
on, so that nothing is compiled anew while a model decodes.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Larger than the exponent of anything that is there, and finite: minus infinity less itself is NaN.
NOTHING = tl.constexpr(-1.0e30)


@triton.jit
def _product(a, b, WIDEN: tl.constexpr):
    """a b in float32; float32 is not rounded to the tensor cores' 19 bits."""
    if WIDEN:  # the interpreter multiplies the bits of bfloat16 as if they were integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _queries(q, n, rows, d, M: tl.constexpr, D: tl.constexpr):
    """Queries of a set, (rows, width of d); zeros where there is none."""
    at = (n.to(tl.int64) * M + rows)[:, None] * D + d[None, :]
    return tl.load(q + at, mask=(rows < M)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _store_sums(sums, at, plane, top, total, mask, LSE: tl.constexpr):
    """Highest logit and total: one float32 for both is too coarse where logits are large."""
    tl.store(sums + at, top, mask=mask)
    tl.store(sums + plane + at, total, mask=mask)
    if LSE:
        empty = total == 0.0
        lse = tl.where(empty, float("-inf"), top + tl.log(tl.where(empty, 1.0, total)))
        tl.store(sums + 2 * plane + at, lse, mask=mask)


@triton.jit(
    do_not_specialize=["most", "each", "pages_b", "pages_h", "counts_b", "counts_h"],
    do_not_specialize_on_alignment=["pages", "counts", "sinks"],
)
def attend_split(
    q,  # (B, H, M, D), contiguous
    k,
    v,  # (B, Hkv, C, D), D contiguous
    k_b,
    k_h,
    k_s,
    v_b,
    v_h,
    v_s,
    pages,  # (B, H, U); anything without TABLE
    pages_b,
    pages_h,
    pages_u,
    counts,  # (B, H, U); (B,) without TABLE
    counts_b,
    counts_h,
    counts_u,
    sinks,  # (H * M,); anything without SINKS
    out,  # (B, H, splits, M, D), contiguous; not divided by the totals where there are splits
    sums,  # (2, B, H, splits, M), contiguous: highest logits and totals; with lse where ALONE
    most,  # slots of a set, read or not
    each,  # slots of a split, a multiple of SLOTS
    H: tl.constexpr,
    SHARED: tl.constexpr,  # sets that share a KV head
    M: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TABLE: tl.constexpr,
    SINKS: tl.constexpr,
    ALONE: tl.constexpr,  # one split
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,  # queries of a program, M padded
    WIDTH: tl.constexpr,  # D padded
    SLOTS: tl.constexpr,  # slots looked at at once
):
    """What the queries of a set get of the slots of one split."""
    n, split = tl.program_id(0), tl.program_id(1)
    b, h = n // H, n % H
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    inside = d < D
    query = _queries(q, n, rows, d, M, D)
    k += b.to(tl.int64) * k_b + (h // SHARED).to(tl.int64) * k_h
    v += b.to(tl.int64) * v_b + (h // SHARED).to(tl.int64) * v_h
    counts += b.to(tl.int64) * counts_b
    if TABLE:
        pages += b.to(tl.int64) * pages_b + h.to(tl.int64) * pages_h
        counts += h.to(tl.int64) * counts_h
        end = most
    else:
        end = tl.load(counts).to(tl.int32)
    first = split * each
    end = tl.minimum(first + each, end)

    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    if SINKS:  # a logit without a value, which the first split takes
        sink = tl.load(sinks + h * M + rows, mask=rows < M, other=0.0).to(tl.float32)
        sink = tl.where(split == 0, sink, float("-inf"))
        top = tl.maximum(top, sink)
        total = tl.exp(sink - top)

    for start in range(first, end, SLOTS):
        j = start + tl.arange(0, SLOTS)
        live = j < end
        if TABLE:
            u, offset = j // PAGE, j % PAGE
            filled = tl.load(counts + u * counts_u, mask=live, other=0)
            number = tl.load(pages + u * pages_u, mask=live, other=0)
            live = live & (offset < filled)
            slot = number.to(tl.int64) * PAGE + offset
        else:
            slot = j.to(tl.int64)
        key = tl.load(
            k + slot[None, :] * k_s + d[:, None], mask=inside[:, None] & live[None, :], other=0.0
        )
        value = tl.load(
            v + slot[:, None] * v_s + d[None, :], mask=live[:, None] & inside[None, :], other=0.0
        )
        scores = tl.where(live[None, :], _product(query, key, WIDEN), float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + _product(weights.to(value.dtype), value, WIDEN)
        top = higher

    at = (n.to(tl.int64) * tl.num_programs(1) + split) * M + rows
    if ALONE:
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + at[:, None] * D + d[None, :], mixed, mask=(rows < M)[:, None] & inside[None, :])
    plane = tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * M
    _store_sums(sums, at, plane, top, total, rows < M, ALONE)


@triton.jit(do_not_specialize=["splits"])
def combine(
    parts,  # (B, H, splits, M, D)
    part_sums,  # (2, B, H, splits, M)
    out,  # (B, H, M, D)
    sums,  # (3, B, H, M): highest logits, totals and log-sum-exps
    splits,
    M: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,  # splits padded
):
    """The splits of one query joined; one with nothing in it has a total of 0."""
    row, queries = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    at, there = (row // M * splits + s) * M + row % M, s < splits
    tops = tl.load(part_sums + at, mask=there, other=NOTHING)
    totals = tl.load(part_sums + queries * splits + at, mask=there, other=0.0)
    top = tl.max(tops, 0)
    weights = tl.exp(tops - top)
    total = tl.sum(weights * totals, 0)
    part = tl.load(
        parts + at[:, None] * D + d[None, :],
        mask=(totals > 0.0)[:, None] & (d < D)[None, :],
        other=0.0,
    )
    mixed = tl.sum(weights[:, None] * part, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * D + d, mixed, mask=d < D)
    _store_sums(sums, row, queries, top, total, True, True)


@triton.jit(do_not_specialize=["most", "counts_b"], do_not_specialize_on_alignment=["counts"])
def probabilities(
    q,  # (B, H, M, D), contiguous
    k,  # (B, Hkv, C, D), D contiguous
    k_b,
    k_h,
    k_s,
    counts,  # (B,)
    counts_b,
    sums,  # (3, B, H, M), as `combine` leaves them
    probs,  # (B, H, M, most), contiguous
    most,
    H: tl.constexpr,
    SHARED: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """exp(logit - highest) / total of each slot, 0 behind the last one a row holds."""
    n = tl.program_id(0)
    b, h = n // H, n % H
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    j = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    live = j < tl.load(counts + b.to(tl.int64) * counts_b)
    query = _queries(q, n, rows, d, M, D)
    k += b.to(tl.int64) * k_b + (h // SHARED).to(tl.int64) * k_h
    key = tl.load(
        k + j.to(tl.int64)[None, :] * k_s + d[:, None],
        mask=(d < D)[:, None] & live[None, :],
        other=0.0,
    )
    at, there = n.to(tl.int64) * M + rows, rows < M
    top = tl.load(sums + at, mask=there, other=0.0)
    total = tl.load(sums + tl.num_programs(0).to(tl.int64) * M + at, mask=there, other=1.0)
    scores = _product(query, key, WIDEN) - top[:, None]
    probability = tl.exp(tl.where(live[None, :], scores, float("-inf")))
    probability = probability / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        probs + at[:, None] * most + j[None, :],
        probability,
        mask=there[:, None] & (j < most)[None, :],
    )
