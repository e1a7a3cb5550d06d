"""What decode steps choose on a GPU, and what prompts leave to choose by; importing this imports
triton.

A set is a choice of its own: one KV head of a row, one query head, or all heads of a layer. Grids
are as in `gpu_kernels`. Within a launch no program reads what another one writes. Sums are in
float32, in one order for all slots, so that equal slots stay equal.

What is called takes a new token's q (R, Hq, 1, D), not scaled, and k and v (R, Hkv, 1, D), and of
each row before the step `seen` and `live`, int32, (R,). What it writes to is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attention.core.ropes import Turn
from attention.engines import gpu
from attention.engines.gpu import Splits, interpreted, power_of_two, strided
from attention.engines.gpu_kernels import NOTHING, filled, joined, ordered, product, turn
from attention.errors import InvalidValue

LOWEST = tl.constexpr(-(2**31))
# Numbers that a choice compares at once, and more than it counts.
_AT_ONCE, _MOST = 4096, 1 << 21
# Pages or blocks that a program scores.
_PAGES = 32
# Keys and queries that are multiplied at once, by the bytes of a number.
_TILES = {2: (128, 32), 4: (32, 32)}


@triton.jit
def _vector(x, d, scaling, D: tl.constexpr):
    """D numbers, scaled and rounded as the plain engine does, in float32."""
    scaled = tl.load(x + d, mask=d < D, other=0.0).to(tl.float32) * scaling
    return scaled.to(x.dtype.element_ty).to(tl.float32)


@triton.jit
def _turned(x, d, scaling, start, end, cos, sin, D: tl.constexpr, TURN: tl.constexpr):
    """`_vector` of position `start` as it would be at `end`."""
    c, s, partner = turn(cos, sin, start, end, d, TURN)
    vector = _vector(x, d, scaling, D) * c + _vector(x, partner, scaling, D) * s
    return vector.to(x.dtype.element_ty).to(tl.float32)


@triton.jit
def bound_pages(
    q, q_r, q_h,  # (R, Hq, 1, D), D contiguous
    k, k_r, k_h,
    v, v_r, v_h,  # (R, H / SHARED, 1, D), D contiguous
    keys, values, capacity,  # (rows, H / SHARED, capacity, D)
    bounds,  # (rows, H / SHARED, pages, 2, D): the greatest of k, and of -k
    scores, pages,  # (R, H, pages)
    scaling, seen, live,
    H: tl.constexpr, SHARED: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, LARGEST: tl.constexpr, WIDTH: tl.constexpr, PAGES: tl.constexpr,
):  # fmt: skip
    """Part 0 stores the new token and raises its page's bounds, the others score full pages.

    The page of the new token is not scored: it is always read.
    """
    n, part = tl.program_id(0), tl.program_id(1)
    r, head = (n // H).to(tl.int64), n % H // SHARED
    if tl.load(live + r) == 0:
        return
    was, d = tl.load(seen + r), tl.arange(0, WIDTH)
    inside, last = d < D, was // PAGE
    kv = r * (H // SHARED) + head
    if part == 0:
        if n % SHARED == 0:
            key = tl.load(k + r * k_r + head * k_h + d, mask=inside)
            value = tl.load(v + r * v_r + head * v_h + d, mask=inside)
            at = (kv * capacity + was) * D + d
            tl.store(keys + at, key, mask=inside)
            tl.store(values + at, value, mask=inside)
            bound, begun = bounds + (kv * pages + last) * 2 * D + d, was % PAGE > 0
            wide = key.to(tl.float32)
            known = tl.load(bound, mask=inside & begun, other=float("-inf")).to(tl.float32)
            below = tl.load(bound + D, mask=inside & begun, other=float("-inf")).to(tl.float32)
            tl.store(bound, tl.maximum(known, wide), mask=inside)
            tl.store(bound + D, tl.maximum(below, -wide), mask=inside)
    elif (part - 1) * PAGES < last:
        page = (part - 1) * PAGES + tl.arange(0, PAGES)
        there = page < last
        line = bounds + (kv * pages + page)[:, None] * 2 * D + d[None, :]
        mask = there[:, None] & inside[None, :]
        most = tl.load(line, mask=mask, other=0.0).to(tl.float32)
        least = tl.load(line + D, mask=mask, other=0.0).to(tl.float32)
        score = tl.full([PAGES], float("-inf"), tl.float32)
        up, down = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
        for m in tl.static_range(M):
            query = _vector(q + r * q_r + (n % H * M + m) * q_h, d, scaling, D)
            if LARGEST:
                up, down = tl.zeros_like(up), tl.zeros_like(down)
            up += tl.maximum(query, 0.0)
            down += tl.maximum(-query, 0.0)
            if LARGEST or m == M - 1:
                product = most * up[None, :] + least * down[None, :]
                score = tl.maximum(score, tl.sum(product, 1))
        tl.store(scores + n.to(tl.int64) * pages + page, score, mask=there)


@triton.jit
def far_blocks(
    q, q_r, q_h,  # (R, Hq, 1, D), D contiguous
    k, k_r, k_h,
    v, v_r, v_h,  # (R, Hkv, 1, D), D contiguous; Hkv is H * HEADS
    near_k, near_v, mass,  # (rows, Hkv, WINDOW, D), and (rows, Hkv, WINDOW)
    far_k, far_v, capacity,  # (rows, Hkv, capacity, D)
    left_mass,  # (rows, Hkv, BLOCK)
    means,  # (rows, H, blocks, HEADS * D), float32
    scores, blocks,  # (R, H, blocks)
    cos, sin,  # (positions, TURN): the model's angles
    scaling, seen, live,
    H: tl.constexpr, HEADS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr,
    FIRST: tl.constexpr, SPARE: tl.constexpr, BLOCK: tl.constexpr, TOP: tl.constexpr,
    TURN: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The first parts move a token of one head each, the others score the blocks that compete.

    The new token takes the place of the one that leaves the window. That goes to the far pages,
    turned to position 0; the last one of a block lets the block be represented.
    """
    n, part = tl.program_id(0), tl.program_id(1)
    r = (n // H).to(tl.int64)
    if tl.load(live + r) == 0:
        return
    was, d = tl.load(seen + r), tl.arange(0, WIDTH)
    inside, gone = d < D, was - WINDOW
    if part < HEADS:
        own, head = n.to(tl.int64) * HEADS + part, n % H * HEADS + part
        near = own * WINDOW + was % WINDOW
        if gone >= 0:
            key = _turned(near_k + near * D, d, 1.0, gone, 0, cos, sin, D, TURN)
            value, share = tl.load(near_v + near * D + d, mask=inside), tl.load(mass + near)
            slot = own * capacity + tl.where(gone < FIRST, gone, gone + SPARE)
            tl.debug_barrier()  # all of the key has been loaded
            tl.store(far_k + slot * D + d, key, mask=inside)
            tl.store(far_v + slot * D + d, value, mask=inside)
            place = (gone - FIRST) % BLOCK
            if gone >= FIRST:
                tl.store(left_mass + own * BLOCK + place, share)
            if (gone >= FIRST) & (place == BLOCK - 1):
                i, total = tl.arange(0, PADDED), tl.zeros([WIDTH], tl.float32)
                masses = left_mass + own * BLOCK + i
                weight = tl.load(masses, mask=i < place, other=float("-inf"))
                weight = tl.where(i == place, share, weight)
                for _ in range(TOP):  # among equals the first
                    best = tl.min(tl.where(weight == tl.max(weight, 0), i, PADDED), 0)
                    page = far_k + (slot - place + best) * D + d
                    other = tl.load(page, mask=inside & (best < place), other=0.0)
                    total += tl.where(best == place, key, other.to(tl.float32))
                    weight = tl.where(i == best, float("-inf"), weight)
                mean = (n.to(tl.int64) * blocks + (gone - FIRST) // BLOCK) * HEADS + part
                tl.store(means + mean * D + d, total / TOP, mask=inside)
        key = tl.load(k + r * k_r + head * k_h + d, mask=inside)
        value = tl.load(v + r * v_r + head * v_h + d, mask=inside)
        tl.store(near_k + near * D + d, key, mask=inside)
        tl.store(near_v + near * D + d, value, mask=inside)
        tl.store(mass + near, 0.0)
    else:
        first, full = (part - HEADS) * BLOCKS, tl.maximum(gone - FIRST, 0) // BLOCK
        if first < full:
            block = first + tl.arange(0, BLOCKS)
            there = block < full
            line = means + (n.to(tl.int64) * blocks + block)[:, None] * HEADS * D + d[None, :]
            score = tl.zeros([BLOCKS], tl.float32)
            for h in range(HEADS):
                query = tl.zeros([WIDTH], tl.float32)
                for m in tl.static_range(M):
                    head = q + r * q_r + ((n % H * HEADS + h) * M + m) * q_h
                    query += _turned(head, d, scaling, was, WINDOW - 1, cos, sin, D, TURN)
                mask = there[:, None] & inside[None, :]
                mean = tl.load(line + h * D, mask=mask, other=0.0)
                score += tl.sum(mean * query[None, :], 1)
            tl.store(scores + n.to(tl.int64) * blocks + block, score, mask=there)


@triton.jit
def _keys(scores, j, count):
    """Scores as integers of the same order."""
    inside = j < count
    return tl.where(inside, ordered(tl.load(scores + j, mask=inside, other=0.0)), LOWEST)


@triton.jit
def _counts(key, threshold, step):
    """How many keys are one, two and three steps above a threshold, in one number."""
    low = threshold + step
    middle = low + step
    counts = (key >= low).to(tl.int64) + ((key >= middle).to(tl.int64) << 21)
    return tl.sum(counts + ((key >= middle + step).to(tl.int64) << 42), 0)


@triton.jit
def _kth(key, scores, j, count, k, BLOCK: tl.constexpr):
    """The highest number that k keys reach: of the first block, and of `scores` behind it."""
    threshold = tl.full([], LOWEST, tl.int32)
    for i in range(16):  # two bits in each pass
        step = 1 << (30 - 2 * i)
        counts = _counts(key, threshold, step)
        for start in range(BLOCK, count, BLOCK):
            counts += _counts(_keys(scores, start + j, count), threshold, step)
        reached = ((counts & 0x1FFFFF) >= k).to(tl.int32) + (counts >> 42 >= k).to(tl.int32)
        threshold += step * (reached + (((counts >> 21) & 0x1FFFFF) >= k).to(tl.int32))
    return threshold


@triton.jit
def choose(
    scores, width,  # (R, SETS, width): worth of what competes; written here with M
    logits, sums, parts, limit, sinks,  # of M queries, as `attend` leaves and `merge` takes them
    lengths, live,  # (R,): tokens before this step
    table, columns, read, k,  # (R, SETS * COPIES, columns), and (R, SETS * COPIES)
    SETS: tl.constexpr, COPIES: tl.constexpr, M: tl.constexpr, LARGEST: tl.constexpr,
    SINKS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The k best pages of a set, the first ones and the last one, in ascending order."""
    n = tl.program_id(0).to(tl.int64)
    r, h = n // SETS, n % SETS
    if tl.load(live + r) == 0:
        return
    first: tl.constexpr = (FIRST + PAGE - 1) // PAGE
    slots = tl.maximum(tl.load(lengths + r) + 1 - WINDOW, 0)
    slots += tl.where(slots > FIRST, first * PAGE - FIRST, 0)
    last = tl.maximum(tl.cdiv(slots, PAGE) - 1, 0)
    competing, j = tl.maximum(last - first, 0), tl.arange(0, BLOCK)
    scores += n * width
    if M:
        plane, s = tl.num_programs(0).to(tl.int64) * parts * M, tl.arange(0, SPLITS)
        _length, there = filled(lengths, r, limit, parts, s, TILE)
        for start in range(0, competing, BLOCK):
            inside, worth = start + j < competing, tl.zeros([BLOCK], tl.float32)
            for m in range(M):  # unrolled, it takes more registers
                line = (n * parts + s) * M + m
                top, _, total = joined(sums, plane, line, there, sinks, h * M + m, SINKS)
                at = logits + (n * M + m) * width + start + j
                gain = tl.exp(tl.load(at, mask=inside, other=NOTHING) - top) / total
                worth = tl.maximum(worth, gain) if LARGEST else worth + gain
            tl.store(scores + start + j, worth, mask=inside)
        tl.debug_barrier()  # all of it has been stored
    key, threshold = _keys(scores, j, competing), tl.full([], LOWEST, tl.int32)
    if competing > k:
        threshold = _kth(key, scores, j, competing, k, BLOCK)
    wanted = k  # of those that equal the kth
    for start in range(0, competing, BLOCK):
        wanted -= tl.sum((_keys(scores, start + j, competing) > threshold).to(tl.int32), 0)
    fixed, count, equals = tl.minimum(first, last), tl.minimum(competing, k), 0
    taken = fixed
    for start in range(0, competing, BLOCK):
        key = _keys(scores, start + j, competing)
        equal = (key == threshold) & (start + j < competing)
        rank = equals + tl.cumsum(equal.to(tl.int32), 0)
        chosen = (key > threshold) | (equal & (rank <= wanted))  # among equals the first ones
        place = taken + tl.cumsum(chosen.to(tl.int32), 0) - 1
        for c in range(COPIES):
            line = table + (n * COPIES + c) * columns
            tl.store(line + place, start + j + first, mask=chosen)
        taken += tl.sum(chosen.to(tl.int32), 0)
        equals += tl.sum(equal.to(tl.int32), 0)
    for c in range(COPIES):
        line = table + (n * COPIES + c) * columns
        for i in range(fixed):
            tl.store(line + i, i)
        tl.store(line + fixed + count, last, mask=slots > 0)
        tl.store(read + n * COPIES + c, (fixed + count - last) * PAGE + slots)


@triton.jit
def stamp(
    logits, capacity,  # (R, H, M, capacity)
    sums, parts, limit, sinks,  # as `attend` leaves and `merge` takes them
    lengths, seen, live,  # (R,): slots in use and tokens before this step
    stamps,  # (rows, H, capacity), int32
    alpha,
    H: tl.constexpr, M: tl.constexpr, SINKS: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, PAGE: tl.constexpr, GQA: tl.constexpr, HALF: tl.constexpr,
    PAGES: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Stamp the new token, and the pages that score most or above `alpha`, with this step."""
    n = tl.program_id(0).to(tl.int64)
    r, h = n // H, n % H
    if tl.load(live + r) == 0:
        return
    slots, now = tl.load(lengths + r) + 1, tl.load(seen + r) + 1
    page, offset = tl.arange(0, PAGES), tl.arange(0, PADDED)
    slot = page[:, None] * PAGE + offset[None, :]
    there = (offset < PAGE)[None, :] & (slot < slots)
    pages, score = tl.cdiv(slots, PAGE), tl.zeros([PAGES], tl.float32)
    plane, s = tl.num_programs(0).to(tl.int64) * parts * M, tl.arange(0, SPLITS)
    _length, full = filled(lengths, r, limit, parts, s, TILE)
    for m in tl.static_range(M):
        line = (n * parts + s) * M + m
        top, _, total = joined(sums, plane, line, full, sinks, h * M + m, SINKS)
        logit = tl.load(logits + (n * M + m) * capacity + slot, mask=there, other=NOTHING)
        most = tl.exp(tl.max(logit, 1) - top) / total
        score = tl.maximum(score, most) if GQA == "max" else score + most
    if GQA == "mean":
        score = score / M
    chosen = score > alpha
    if HALF:
        key, half = tl.where(page < pages, ordered(score), LOWEST), tl.maximum(pages // 2, 1)
        threshold = _kth(key, logits, page, 0, half, PAGES)
        wanted = half - tl.sum((key > threshold).to(tl.int32), 0)
        equal = key == threshold
        chosen = (key > threshold) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= wanted))
    new = slot == slots - 1
    old = tl.load(stamps + n * capacity + slot, mask=there & (slot < slots - 1), other=0)
    stamped = tl.where(chosen[:, None] | new, tl.maximum(old, now), old)
    tl.store(stamps + n * capacity + slot, stamped, mask=there)


@triton.jit(do_not_specialize=["T", "S"])
def log_sums(
    q, q_b, q_h, q_t,  # (B, Hq, T, D), D contiguous
    k, k_b, k_h, k_s,  # (B, Hq / M, S, D), D contiguous
    lengths,  # (B,): slots of each row; the last query sees all, each before it one less
    sinks,  # (Hq,), SINKS
    lse,  # (B, Hq, T)
    T, S, scaling,
    HQ: tl.constexpr, M: tl.constexpr, D: tl.constexpr, SINKS: tl.constexpr, WIDTH: tl.constexpr,
    KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Logarithms of the sums of exponentials of some queries of one head, those with most first."""
    n, d = tl.program_id(0), tl.arange(0, WIDTH)
    b, head = n // HQ, n % HQ
    begin = (tl.num_programs(1) - 1 - tl.program_id(1)) * QUERIES
    length, inside = tl.minimum(tl.load(lengths + b), S), d < D
    t = begin + tl.arange(0, QUERIES)
    real, own = (t < T) & (t >= T - length), t - T + length
    q += b.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    k += b.to(tl.int64) * k_b + (head // M).to(tl.int64) * k_h
    at = t.to(tl.int64)[:, None] * q_t + d[None, :]
    query = tl.load(q + at, mask=real[:, None] & inside[None, :], other=0.0)
    top, total = tl.full([QUERIES], NOTHING, tl.float32), tl.zeros([QUERIES], tl.float32)
    if SINKS:  # a logit without a value
        top, total = top * 0.0 + tl.load(sinks + head).to(tl.float32), total + 1.0
    for start in range(0, tl.minimum(begin + QUERIES - T + length, length), KEYS):
        s = start + tl.arange(0, KEYS)
        mask = inside[:, None] & (s < length)[None, :]
        key = tl.load(k + s.to(tl.int64)[None, :] * k_s + d[:, None], mask=mask, other=0.0)
        logit = product(query, key, scaling)
        logit = tl.where(s[None, :] <= own[:, None], logit, float("-inf"))
        higher = tl.maximum(top, tl.max(logit, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(logit - higher[:, None]), 1)
        top = higher
    total = tl.where(real, total, 1.0)
    tl.store(lse + n.to(tl.int64) * T + t, top + tl.log(total), mask=t < T)


@triton.jit(do_not_specialize=["T", "S", "band", "w_b"])
def masses(
    q, q_b, q_h, q_t,
    k, k_b, k_h, k_s,
    lengths, lse,  # all as in `log_sums`
    weights, w_b,  # (B or 1, T), float32
    mass,  # (B, Hq, S)
    T, S, band, scaling,
    HQ: tl.constexpr, M: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
    QUERIES: tl.constexpr,
):  # fmt: skip
    """The probability that some slots get of the queries that see them, those with most first."""
    n, part, d = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDTH)
    b, head = n // HQ, n % HQ
    length, inside = tl.minimum(tl.load(lengths + b), S), d < D
    s, shift = part * KEYS + tl.arange(0, KEYS), T - length  # a query's newest slot is t - shift
    q += b.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    k += b.to(tl.int64) * k_b + (head // M).to(tl.int64) * k_h
    own = s.to(tl.int64)[:, None] * k_s + d[None, :]
    key = tl.load(k + own, mask=inside[None, :] & (s < length)[:, None], other=0.0)
    end = tl.minimum(part * KEYS + KEYS - 1 + shift + band, T)
    total = tl.zeros([KEYS], tl.float32)
    for start in range(tl.maximum(part * KEYS + shift, 0), end, QUERIES):
        t = start + tl.arange(0, QUERIES)
        there, at = t < end, t.to(tl.int64)[None, :] * q_t + d[:, None]
        query = tl.load(q + at, mask=inside[:, None] & there[None, :], other=0.0)
        age = (t - shift)[None, :] - s[:, None]
        sees = (age >= 0) & (age < band) & there[None, :]
        above = tl.load(lse + n.to(tl.int64) * T + t, mask=there, other=0.0)
        gain = tl.exp(product(key, query, scaling) - above[None, :])
        weight = tl.load(weights + b * w_b + t, mask=there, other=0.0)
        total += tl.sum(tl.where(sees & (weight > 0)[None, :], gain * weight[None, :], 0.0), 1)
    tl.store(mass + n.to(tl.int64) * S + s, total, mask=s < S)


def estimate_pages(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, keys: Tensor, values: Tensor, bounds: Tensor,
    seen: Tensor, live: Tensor, page: int, gqa: str = "sum",
) -> Tensor:  # fmt: skip
    """Store each row's new token, raise its page's bounds, and score the full pages before it.

    Bounds are the summaries of `quest`, (rows, Hkv, P, 2 D), and `gqa` its parameter; with
    "query_head" each query head has a set. Scores are float32, (R, sets, P); nothing is written
    from the new token's page on.
    """
    (R, Hq, _, D), Hkv, P = q.shape, k.shape[1], bounds.shape[2]
    sets, pages = Hq if gqa == "query_head" else Hkv, 16 if interpreted() else _PAGES
    scores = q.new_empty((R, sets, P), dtype=torch.float32)
    gpu.launch(
        bound_pages, (R * sets, 1 + -(-P // pages)), *strided(q, k, v),
        keys, values, keys.shape[2], bounds, scores, P, scaling, seen, live,
        H=sets, SHARED=sets // Hkv, M=Hq // sets, D=D, PAGE=page, LARGEST=gqa == "max",
        WIDTH=power_of_two(D), PAGES=pages,
    )  # fmt: skip
    return scores


def estimate_blocks(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, near: Sequence[Tensor],
    far: Sequence[Tensor], turn: Turn, seen: Tensor, live: Tensor, n_init: int, repr_topk: int,
) -> Tensor:  # fmt: skip
    """Let each row's new token into its window and the oldest out, and score the blocks.

    Scores are float32, (R, sets, P); nothing is written where blocks do not compete.

    Args:
        near: keys, values and mass of the window, as `far_blocks` takes them, mass in float32.
        far: keys, values and newest mass of pages, C a multiple of `block`, and representatives.
        turn: cos and sin of all positions, float32, (positions, rotated part of D) each.
    """
    (far_k, far_v, left_mass, means), blocks = far, 16 if interpreted() else _PAGES
    (R, Hq, _, D), Hkv, (sets, P), block = q.shape, k.shape[1], means.shape[1:3], left_mass.shape[2]
    scores = q.new_empty((R, sets, P), dtype=torch.float32)
    gpu.launch(
        far_blocks, (R * sets, Hkv // sets + -(-P // blocks)), *strided(q, k, v),
        *near, far_k, far_v, far_k.shape[2], left_mass, means, scores, P, *turn, scaling, seen,
        live, H=sets, HEADS=Hkv // sets, M=Hq // Hkv, D=D, WINDOW=near[0].shape[2], FIRST=n_init,
        SPARE=-n_init % block, BLOCK=block, TOP=repr_topk, TURN=turn[0].shape[1],
        WIDTH=power_of_two(D), PADDED=power_of_two(block), BLOCKS=blocks,
    )  # fmt: skip
    return scores


def select(
    scores: Tensor | Splits, lengths: Tensor, live: Tensor, k: int, *, page: int = 1,
    n_init: int = 0, window: int = 0, heads: int | None = None, largest: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k best pages of each set, the pages of the first tokens, and the last page.

    Among equals the older wins; -0.0 is less than 0.0. Pages come in ascending order, int32,
    (R, heads, U), and with how many slots of them to read, the empty ones included, (R, heads).

    Args:
        scores: float32, (R, sets, P), of pages behind the first ones; or logits of slots, whose
            probabilities, the sum over a set's queries or the `largest`, are what counts.
        lengths: as `seen`; the new token is on the last page.
        n_init: first tokens that have pages of their own; the slots behind them on these are empty.
        window: newest tokens that are on no page.
        heads: heads that read the tables, a multiple of the sets; as many by default.
    """
    known, constants = _sums(scores if isinstance(scores, Splits) else None)
    if isinstance(scores, Splits):
        R, H, *_ = scores.mixed.shape
        scores = scores.mixed.new_empty((R, H, scores.store.keys.shape[2]))
    columns = -(-n_init // page) + k + 1
    R, sets, width = scores.shape
    heads = heads or sets
    if width >= _MOST:
        raise InvalidValue("tokens", width, f"less than {_MOST} pages or tokens to choose from")
    table = lengths.new_empty((R, heads, columns), dtype=torch.int32)
    read, block = table.new_empty((R, heads)), min(power_of_two(width), _AT_ONCE)
    gpu.launch(
        choose, (R * sets,), scores, width, *known, lengths, live, table, columns, read, k,
        SETS=sets, COPIES=heads // sets, LARGEST=largest, PAGE=page, WINDOW=window, FIRST=n_init,
        BLOCK=block, **constants, num_warps=_warps(block),
    )  # fmt: skip
    return table, read


def restamp(
    splits: Splits, seen: Tensor, live: Tensor, stamps: Tensor, page: int, gqa: str,
    alpha: float | None,
) -> None:  # fmt: skip
    """Stamp the new token and the pages that are needed, as `raas` does at each step.

    Args:
        splits: with logits.
        seen, live: of each row before the step, int32, (R,).
        stamps: int32, (rows, H, C).
    """
    (known, constants), (_, H, C) = _sums(splits), stamps.shape
    pages, padded = power_of_two(-(-C // page)), power_of_two(page, 1)
    gpu.launch(
        stamp, (splits.sums.shape[1] * H,), splits.logits, C, *known[1:], splits.store.lengths,
        seen, live, stamps, alpha or 0.0,
        H=H, PAGE=page, GQA=gqa, HALF=alpha is None, PAGES=pages, PADDED=padded, **constants,
        num_warps=_warps(pages * padded),
    )  # fmt: skip


def column_mass(
    q: Tensor, k: Tensor, scaling: float, lengths: Tensor, weights: Tensor,
    band: int | None = None, sink_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The probability that each slot receives of all queries, without writing any down.

    It is (B, Hkv, G, S), 0 for slots that a row has not, and comes with the logarithms of the
    queries' sums of exponentials, sinks included, (B, Hq, T), both in float32.

    Args:
        q, k: of a prompt, (B, Hq, T, D), and (B, Hkv, S, D), oldest token first.
        lengths: slots of each row, int32, (B,); the last query sees all, each before it one less.
        weights: factor of what a query gives, 0 or more, float32, (B or 1, T), contiguous.
        band, sink_logits: as in `attention.core.kernels.dense_with_mass`.
    """
    (B, Hq, T, D), (H, S) = q.shape, k.shape[1:3]
    keys, queries = (16, 16) if interpreted() else _TILES[q.itemsize]
    shapes = {"HQ": Hq, "M": Hq // H, "D": D, "WIDTH": power_of_two(D)}
    where = (*strided(q, k, axes=3), lengths)
    lse = q.new_empty((B, Hq, T), dtype=torch.float32)
    gpu.launch(
        log_sums, (B * Hq, -(-T // keys)), *where, sink_logits, lse, T, S, scaling, **shapes,
        SINKS=sink_logits is not None, KEYS=queries, QUERIES=keys, num_warps=8, num_stages=2,
    )  # fmt: skip
    mass = q.new_empty((B, H, Hq // H, S), dtype=torch.float32)
    gpu.launch(
        masses, (B * Hq, -(-S // keys)), *where, lse, weights, T if len(weights) > 1 else 0, mass,
        T, S, min(band or S, S), scaling, **shapes, KEYS=keys, QUERIES=queries, num_warps=8,
        num_stages=2,
    )  # fmt: skip
    return mass, lse


def _sums(splits: Splits | None) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and constants with which kernels find the probabilities of slots."""
    if splits is None:
        return [None, None, 0, 0, None], {"M": 0, "SINKS": False, "TILE": 16, "SPLITS": 2}
    store, (*_, parts, M) = splits.store, splits.sums.shape
    return [splits.logits, splits.sums, parts, store.limit, store.sink_logits], {
        "M": M, "SINKS": store.sink_logits is not None, "TILE": splits.tile,
        "SPLITS": power_of_two(parts, 2),
    }  # fmt: skip


def _warps(numbers: int) -> int:
    return min(max(4, numbers // 512), 32)
