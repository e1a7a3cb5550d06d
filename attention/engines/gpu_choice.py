"""What decode steps choose on a GPU, and what prompts leave to choose by; importing this imports
triton.

A set is a choice of its own: one KV head of a row, one query head, or all heads of a layer. Grids
follow from capacities alone: every program reads its row's length, and has nothing to do where its
share is empty or the row is not live. Within a launch no program reads what another one writes.
Sums are in float32, in one order for all slots, so that equal slots stay equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from attention.core.kernels import over_group
from attention.core.ropes import Turn
from attention.engines import gpu
from attention.engines.gpu import interpreted, power_of_two, widened
from attention.errors import InvalidValue

# Finite: minus infinity less itself is NaN.
NOTHING = tl.constexpr(-1.0e30)
LOWEST, HIGHEST = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)
# Numbers that a choice compares at once; of more the best of each part are compared again.
_AT_ONCE, _MOST_AT_ONCE = 4096, 8192
# Pages or blocks that a program scores, and slots that it moves.
_PAGES, _MOVED = 32, 64
# Keys and queries that are multiplied at once, by the bytes of a number.
_TILES = {2: (128, 64), 4: (32, 32)}


@triton.jit
def _vector(x, d, scaling, D: tl.constexpr):
    """D numbers, scaled and rounded as the plain engine does, in float32."""
    scaled = tl.load(x + d, mask=d < D, other=0.0).to(tl.float32) * scaling
    return scaled.to(x.dtype.element_ty).to(tl.float32)


@triton.jit
def _turned(x, d, scaling, start, end, cos, sin, D: tl.constexpr, TURN: tl.constexpr):
    """`_vector` of position `start` as it would be at `end`; see `attention.core.ropes`."""
    vector = _vector(x, d, scaling, D)
    if TURN:
        turns = d < TURN
        c0 = tl.load(cos + start.to(tl.int64) * TURN + d, mask=turns, other=1.0)
        s0 = tl.load(sin + start.to(tl.int64) * TURN + d, mask=turns, other=0.0)
        c1 = tl.load(cos + end * TURN + d, mask=turns, other=1.0)
        s1 = tl.load(sin + end * TURN + d, mask=turns, other=0.0)
        size = c0 * c0 + s0 * s0
        c0, s0 = c0 / size, -s0 / size
        c, s = c1 * c0 - s1 * s0, s1 * c0 + c1 * s0
        half: tl.constexpr = TURN // 2
        pair = _vector(x, tl.where(d < half, d + half, tl.where(turns, d - half, d)), scaling, D)
        vector = vector * c + pair * tl.where(d < half, -s, s)
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
    H: tl.constexpr, HEADS: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    WINDOW: tl.constexpr, FIRST: tl.constexpr, SPARE: tl.constexpr, BLOCK: tl.constexpr,
    TOP: tl.constexpr, TURN: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    BLOCKS: tl.constexpr,
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
def _image(x):
    """Floats as integers of the same order; -0.0 is below 0.0."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & HIGHEST)


@triton.jit
def _best(key, there, k, YOUNGER: tl.constexpr):
    """Which k keys are largest, and where each is among them; all, if there are no more.

    Among equals the first ones are, or the last ones if `YOUNGER`.
    """
    key = tl.where(there, key, LOWEST)
    threshold = tl.full([], LOWEST, tl.int32)
    if tl.sum(there.to(tl.int32), 0) > k:
        for i in range(16):  # two bits of the kth key in each pass: three counts in one sum
            step = 1 << (30 - 2 * i)
            low = threshold + step
            middle = low + step
            high = middle + step
            counts = (key >= low).to(tl.int64) + ((key >= middle).to(tl.int64) << 20)
            counts = tl.sum(counts + ((key >= high).to(tl.int64) << 40), 0)
            threshold = tl.where((counts & 0xFFFFF) >= k, low, threshold)
            threshold = tl.where(((counts >> 20) & 0xFFFFF) >= k, middle, threshold)
            threshold = tl.where((counts >> 40) >= k, high, threshold)
    above, equal = key > threshold, there & (key == threshold)
    both = above.to(tl.int32) + (equal.to(tl.int32) << 16)
    total, before = tl.sum(both, 0), tl.cumsum(both, 0)
    wanted, equals = k - (total & 0xFFFF), before >> 16
    skipped = tl.maximum((total >> 16) - wanted, 0) if YOUNGER else 0
    taken = tl.minimum(tl.maximum(equals - skipped, 0), wanted)
    chosen = above | (equal & (equals > skipped) & (equals <= skipped + wanted))
    return chosen, (before & 0xFFFF) + taken - 1


@triton.jit
def _gain(logits, lse, at, there, capacity, M: tl.constexpr, LARGEST: tl.constexpr):
    """The probability that the M queries of a set give to slots, their sum or the largest."""
    gain = tl.zeros(at.shape, tl.float32)
    for m in tl.static_range(M):
        logit = tl.load(logits + m * capacity + at, mask=there, other=NOTHING)
        each = tl.exp(logit - tl.load(lse + m))
        gain = tl.maximum(gain, each) if LARGEST else gain + each
    return gain


@triton.jit
def choose(
    scores,  # (R, SETS, width): worth of what competes; with M logits, (R, SETS, M, width)
    width,
    lse,  # (R, SETS, M), M
    lengths, live,  # (R,): tokens before this step
    most,  # (R,): slots that a row keeps, 0 where it keeps all; CUT
    spared,  # (R,): first slots that stay; CUT
    parts, chunks,  # (R, SETS, chunks, KEPT): the best of each chunk; LEVEL
    table, columns,  # (R, SETS * COPIES, columns)
    read,  # (R, SETS * COPIES)
    SETS: tl.constexpr, COPIES: tl.constexpr, M: tl.constexpr, LARGEST: tl.constexpr,
    PAGE: tl.constexpr, EACH: tl.constexpr, WINDOW: tl.constexpr, FIRST: tl.constexpr,
    SPARE: tl.constexpr, K: tl.constexpr, CUT: tl.constexpr, STAMPS: tl.constexpr,
    LEVEL: tl.constexpr, CHUNK: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The K best pages of a set, the first ones and the last one, in ascending order.

    LEVEL 1 finds the best of each chunk, LEVEL 2 the best of those; LEVEL 0 does without.
    """
    n, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    r = n // SETS
    k = K
    if CUT:
        k = tl.load(most + r)
        k = tl.where(k > 0, tl.cdiv(k, PAGE) - 1, -1)
    if (tl.load(live + r) == 0) | (k < 0):
        return
    slots = tl.maximum(tl.load(lengths + r) + 1 - WINDOW, 0)
    slots += tl.where(slots > FIRST, SPARE, 0)
    last, first = tl.maximum(tl.cdiv(slots, PAGE) - 1, 0), (FIRST + SPARE) // PAGE
    competing = tl.maximum(last - first, 0)
    j = chunk * CHUNK + tl.arange(0, BLOCK)
    number, there = j, j < competing
    if LEVEL == 2:
        filled = tl.minimum(tl.maximum(competing - j // KEPT * CHUNK, 0), CHUNK)
        there = j % KEPT < tl.minimum(filled, k)
        number = tl.load(parts + n * chunks * KEPT + j, mask=there, other=0)
    at = number * EACH + EACH - 1
    if M:
        key = _image(_gain(scores + n * M * width, lse + n * M, at, there, width, M, LARGEST))
    elif STAMPS:
        key = tl.load(scores + n * width + at, mask=there, other=0)
    else:
        key = _image(tl.load(scores + n * width + at, mask=there, other=0.0))
    if CUT:
        key = tl.where(at < tl.load(spared + r), HIGHEST, key)
    chosen, place = _best(key, there, k, STAMPS)
    if LEVEL == 1:
        tl.store(parts + (n * chunks + chunk) * KEPT + place, number, mask=chosen)
    else:
        count, fixed = tl.minimum(competing, k), tl.minimum(first, last)
        for c in range(COPIES):
            line = table + (n * COPIES + c) * columns
            for i in range(fixed):
                tl.store(line + i, i)
            tl.store(line + fixed + place, number + first, mask=chosen)
            tl.store(line + fixed + count, last, mask=slots > 0)
            tl.store(read + n * COPIES + c, (fixed + count - last) * PAGE + slots)


@triton.jit
def stamp(
    logits, capacity,  # (R, H, M, capacity)
    lse,  # (R, H, M)
    lengths, live,  # (R,): slots in use before this step
    seen,  # (R,)
    stamps,  # (rows, H, capacity), int32
    alpha,
    H: tl.constexpr, M: tl.constexpr, PAGE: tl.constexpr, GQA: tl.constexpr, HALF: tl.constexpr,
    PAGES: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Stamp the new token, and the pages that score most or above `alpha`, with this step."""
    n = tl.program_id(0).to(tl.int64)
    if tl.load(live + n // H) == 0:
        return
    slots, now = tl.load(lengths + n // H) + 1, tl.load(seen + n // H) + 1
    page, offset = tl.arange(0, PAGES), tl.arange(0, PADDED)
    slot = page[:, None] * PAGE + offset[None, :]
    there = (offset < PAGE)[None, :] & (slot < slots)
    pages, score = tl.cdiv(slots, PAGE), tl.zeros([PAGES], tl.float32)
    for m in tl.static_range(M):
        logit = tl.load(logits + (n * M + m) * capacity + slot, mask=there, other=NOTHING)
        most = tl.exp(tl.max(logit, 1) - tl.load(lse + n * M + m))
        score = tl.maximum(score, most) if GQA == "max" else score + most
    if GQA == "mean":
        score = score / M
    chosen = score > alpha
    if HALF:
        chosen, _ = _best(_image(score), page < pages, tl.maximum(pages // 2, 1), False)
    new = slot == slots - 1
    old = tl.load(stamps + n * capacity + slot, mask=there & (slot < slots - 1), other=0)
    stamped = tl.where(chosen[:, None] | new, tl.maximum(old, now), old)
    tl.store(stamps + n * capacity + slot, stamped, mask=there)


@triton.jit
def _product(a, b, scaling, WIDEN: tl.constexpr):
    """a b in float32; float32 is not rounded to the tensor cores' 19 bits."""
    if WIDEN:  # the interpreter multiplies the bits of bfloat16 as if they were integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee") * scaling


@triton.jit(do_not_specialize=["T", "S"])
def log_sums(
    q, q_b, q_h, q_t,  # (B, Hq, T, D), D contiguous
    k, k_b, k_h, k_s,  # (B, H, S, D), D contiguous
    lengths, new,  # (B,): slots of each row, and how many of the T queries are its own
    sinks,  # (Hq,), SINKS
    lse,  # (B, Hq, T)
    T, S, scaling,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, SINKS: tl.constexpr, WIDEN: tl.constexpr,
    WIDTH: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Logarithms of the sums of exponentials of some queries of one head, those with most first."""
    n, d = tl.program_id(0), tl.arange(0, WIDTH)
    b, head = n // (H * M), n % (H * M)
    begin = (tl.num_programs(1) - 1 - tl.program_id(1)) * QUERIES
    length, inside = tl.minimum(tl.load(lengths + b), S), d < D
    t = begin + tl.arange(0, QUERIES)
    real, own = (t < T) & (t >= T - tl.load(new + b)), t - T + length
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
        logit = _product(query, key, scaling, WIDEN)
        logit = tl.where(s[None, :] <= own[:, None], logit, float("-inf"))
        higher = tl.maximum(top, tl.max(logit, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(logit - higher[:, None]), 1)
        top = higher
    tl.store(lse + n.to(tl.int64) * T + t, top + tl.log(tl.where(real, total, 1.0)), mask=real)


@triton.jit(do_not_specialize=["T", "S", "band", "w_b"])
def masses(
    q, q_b, q_h, q_t,
    k, k_b, k_h, k_s,
    lengths, new,
    lse,  # all as in `log_sums`
    weights, w_b,  # (B or 1, T), float32; WEIGHTS
    mass,  # (B, H, S), or (B, H, M, S) where HEADS is 1
    T, S, band, scaling,
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, WEIGHTS: tl.constexpr,
    WIDEN: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """The probability that some slots get of the queries that see them, those with most first."""
    n, part, d = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDTH)
    b, head = n * HEADS // (H * M), n * HEADS % (H * M)
    length, inside = tl.minimum(tl.load(lengths + b), S), d < D
    s, shift = part * KEYS + tl.arange(0, KEYS), T - length  # a query's newest slot is t - shift
    k += b.to(tl.int64) * k_b + (head // M).to(tl.int64) * k_h
    own = s.to(tl.int64)[:, None] * k_s + d[None, :]
    key = tl.load(k + own, mask=inside[None, :] & (s < length)[:, None], other=0.0)
    begin = tl.maximum(T - tl.load(new + b), part * KEYS + shift)
    end = tl.minimum(part * KEYS + KEYS - 1 + shift + band, T)
    total = tl.zeros([KEYS], tl.float32)
    q += b.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    lse += n.to(tl.int64) * HEADS * T
    for i in range(HEADS):
        for start in range(begin, end, QUERIES):
            t = start + tl.arange(0, QUERIES)
            mask = inside[:, None] & (t < end)[None, :]
            at = t.to(tl.int64)[None, :] * q_t + d[:, None]
            logit = _product(key, tl.load(q + i * q_h + at, mask=mask, other=0.0), scaling, WIDEN)
            age = (t - shift)[None, :] - s[:, None]
            sees = (age >= 0) & (age < band) & (t < end)[None, :]
            logit -= tl.load(lse + i * T + t, mask=t < end, other=0.0)[None, :]
            gain = tl.where(sees, tl.exp(logit), 0.0)
            if WEIGHTS:
                gain *= tl.load(weights + b * w_b + t, mask=t < end, other=0.0)[None, :]
            total += tl.sum(gain, 1)
    tl.store(mass + n.to(tl.int64) * S + s, total, mask=s < S)


@triton.jit
def compact(
    x, capacity,  # (rows, H, capacity, SIZE)
    table, columns,  # (R, H, columns): pages that stay, ascending
    read,  # (R, H): slots on them
    most,  # (R,): 0 where nothing is dropped
    H: tl.constexpr, PAGE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    MOVED: tl.constexpr,
):  # fmt: skip
    """Move what stays to the first slots; nothing moves to a slot that is yet to be read."""
    n, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    if tl.load(most + n // H) == 0:
        return
    count = tl.load(read + n)
    x += n * capacity * SIZE
    for start in range(0, count, MOVED):
        i = start + tl.arange(0, MOVED)
        page = tl.load(table + n * columns + i // PAGE, mask=i < count, other=0)
        mask = (i < count)[:, None] & (d < SIZE)[None, :]
        source = (page * PAGE + i % PAGE)[:, None] * SIZE + d[None, :]
        moved = tl.load(x + source, mask=mask)
        tl.debug_barrier()  # all of it has been loaded
        tl.store(x + i[:, None] * SIZE + d[None, :], moved, mask=mask)


class Far(NamedTuple):
    """What `infllm` holds of all rows: its layer's state, contiguous, with room for all tokens.

    Attributes:
        near_k, near_v, mass: the window, (rows, Hkv, n_local, D), and (rows, Hkv, n_local) float32.
        far_k, far_v: (rows, Hkv, C, D); C is a multiple of `block`.
        left_mass: (rows, Hkv, block) float32.
        means: representatives, (rows, sets, P, Hkv / sets * D) float32.
    """

    near_k: Tensor
    near_v: Tensor
    mass: Tensor
    far_k: Tensor
    far_v: Tensor
    left_mass: Tensor
    means: Tensor


def estimate_pages(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, keys: Tensor, values: Tensor, bounds: Tensor,
    seen: Tensor, live: Tensor, page: int, gqa: str = "sum",
) -> Tensor:  # fmt: skip
    """Store each row's new token, raise its page's bounds, and score the full pages before it.

    Args:
        q, k, v: (R, Hq, 1, D) and (R, Hkv, 1, D), any strides but of D; q not scaled.
        keys, values: (rows, Hkv, C, D), contiguous.
        bounds: the summaries of `quest`, (rows, Hkv, P, 2 D), contiguous.
        seen, live: of each row before the step, int32, (R,).
        gqa: as the parameter of `quest`; with "query_head" each query head has a set.

    Returns:
        float32, (R, sets, P); nothing is written from the new token's page on.
    """
    (R, Hq, _, D), Hkv, P = q.shape, k.shape[1], bounds.shape[2]
    sets, pages = Hq if gqa == "query_head" else Hkv, _tile(_PAGES)
    scores = q.new_empty((R, sets, P), dtype=torch.float32)
    gpu.launch(
        bound_pages, (R * sets, 1 + -(-P // pages)), *_strided(q, k, v),
        keys, values, keys.shape[2], bounds, scores, P, scaling, seen, live,
        H=sets, SHARED=sets // Hkv, M=Hq // sets, D=D, PAGE=page, LARGEST=gqa == "max",
        WIDTH=power_of_two(D), PAGES=pages,
    )  # fmt: skip
    return scores


def estimate_blocks(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, far: Far, turn: Turn, seen: Tensor,
    live: Tensor, n_init: int, repr_topk: int,
) -> Tensor:  # fmt: skip
    """Let each row's new token into its window and the oldest out, and score the blocks.

    Args:
        q, k, v, seen, live: as in `estimate_pages`.
        turn: cos and sin of all positions, float32, (positions, rotated part of D) each.

    Returns:
        float32, (R, sets, P); nothing is written where blocks do not compete.
    """
    (R, Hq, _, D), Hkv, (sets, P) = q.shape, k.shape[1], far.means.shape[1:3]
    block, blocks = far.left_mass.shape[2], _tile(_PAGES)
    scores = q.new_empty((R, sets, P), dtype=torch.float32)
    gpu.launch(
        far_blocks, (R * sets, Hkv // sets + -(-P // blocks)), *_strided(q, k, v),
        *far[:5], far.far_k.shape[2], *far[5:], scores, P, *turn, scaling, seen, live,
        H=sets, HEADS=Hkv // sets, M=Hq // Hkv, D=D, WINDOW=far.near_k.shape[2], FIRST=n_init,
        SPARE=-n_init % block, BLOCK=block, TOP=repr_topk, TURN=turn[0].shape[1],
        WIDTH=power_of_two(D), PADDED=power_of_two(block), BLOCKS=blocks,
    )  # fmt: skip
    return scores


def select(
    scores: Tensor, lengths: Tensor, live: Tensor, k: int, *, page: int = 1, n_init: int = 0,
    window: int = 0, heads: int | None = None, lse: Tensor | None = None, largest: bool = False,
    most: Tensor | None = None, spared: Tensor | None = None, at_once: int = _AT_ONCE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k best pages of each set, the pages of the first tokens, and the last page.

    Among equals the older wins; -0.0 is less than 0.0. Where rows are cut the pages are those that
    stay, and `scores` is either the worth of each slot or the stamps of `raas`: int32, the last
    one of a page counts, and among equals the younger page wins.

    Args:
        scores: float32, (R, sets, P), of pages behind the first ones; with `lse` logits of slots,
            (R, sets, M, C), and the probability is what counts; with `most` (R, sets, C).
        lengths: tokens of each row before the step, int32, (R,); the new one is on the last page.
        k: pages wanted; with `most` C / page - 1.
        n_init: first tokens that have pages of their own; the slots behind them on these are empty.
        window: newest tokens that are on no page.
        heads: heads that read the tables, a multiple of the sets; as many by default.
        lse: (R, sets, M) float32.
        largest: the largest probability of M counts, not their sum.
        most, spared: slots of each row that stay, 0 where nothing is written, and first ones among
            them; whole pages, int32, (R,).
        at_once: scores that one program compares; of more the best of each part are compared again.

    Returns:
        Pages in ascending order, int32, (R, heads, U), and how many slots of them to read, the
        empty ones included, int32, (R, heads). U is the number of first pages + k + 1.
    """
    (R, sets), width, spare = scores.shape[:2], scores.shape[-1], -n_init % page
    each, columns = 1 if most is None else page, (n_init + spare) // page + k + 1
    heads, number, kept = heads or sets, width // each, min(k, at_once)
    chunks = -(-number // at_once)
    if chunks > 1 and chunks * kept > _MOST_AT_ONCE:
        raise InvalidValue("k", k, f"at most {_MOST_AT_ONCE // chunks} of {number}")
    table, read, parts = (
        scores.new_empty((R, *n), dtype=torch.int32)
        for n in ((heads, columns), (heads,), (sets, chunks, kept))
    )
    for level in (0,) if chunks == 1 else (1, 2):
        block = (power_of_two(number), at_once, power_of_two(chunks * kept))[level]
        gpu.launch(
            choose, (R * sets, chunks if level == 1 else 1),
            scores, width, lse, lengths, live, most, spared, parts, chunks, table, columns, read,
            SETS=sets, COPIES=heads // sets, M=0 if lse is None else scores.shape[2],
            LARGEST=largest, PAGE=page, EACH=each, WINDOW=window, FIRST=n_init, SPARE=spare, K=k,
            CUT=most is not None, STAMPS=not scores.is_floating_point(),
            LEVEL=level, CHUNK=at_once, KEPT=kept, BLOCK=block, num_warps=_warps(block),
        )  # fmt: skip
    return table, read


def restamp(
    logits: Tensor, lse: Tensor, lengths: Tensor, live: Tensor, seen: Tensor, stamps: Tensor,
    page: int, gqa: str, alpha: float | None,
) -> None:  # fmt: skip
    """Stamp the new token and the pages that are needed, as `raas` does at each step.

    Args:
        logits, lse: of one query, float32, (R, H, M, C) and (R, H, M).
        lengths, live, seen: slots in use, and as elsewhere, before the step, int32, (R,).
        stamps: int32, (rows, H, C).
    """
    R, H, M, C = logits.shape
    pages, padded = power_of_two(-(-C // page)), power_of_two(page, 1)
    gpu.launch(
        stamp, (R * H,), logits, C, lse, lengths, live, seen, stamps, alpha or 0.0,
        H=H, M=M, PAGE=page, GQA=gqa, HALF=alpha is None, PAGES=pages, PADDED=padded,
        num_warps=_warps(pages * padded),
    )  # fmt: skip


def column_mass(
    q: Tensor, k: Tensor, scaling: float, lengths: Tensor, new: Tensor, *, by_head: bool = False,
    lse: Tensor | None = None, weights: Tensor | None = None, band: int | None = None,
    sink_logits: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The probability that each slot receives of all queries, without writing any down.

    Args:
        q: (B, Hq, T, D), any strides but of D.
        k: (B, Hkv, S, D), likewise, oldest token first.
        lengths, new: slots of each row, and how many of the last columns are its own, int32, (B,).
        by_head: the query heads of a group have masses of their own.
        lse: logarithms of the sums of exponentials, sinks included, float32, (B, Hq, T),
            contiguous; None to compute them in a pass over the keys.
        weights: factor of what a query gives, float32, (B or 1, T), contiguous; None for 1.
        band: only queries less than this many tokens after a slot give it mass; None for all.
        sink_logits: the model's further logits, (Hq,).

    Returns:
        float32, (B, Hkv, S), or (B, Hkv, G, S) if `by_head`; 0 for slots that a row has not.
    """
    (B, Hq, T, D), (H, S) = q.shape, k.shape[1:3]
    G, keys, queries = Hq // H, *((16, 16) if interpreted() else _TILES[q.itemsize])
    shapes = {"H": H, "M": G, "D": D, "WIDEN": widened(q.dtype), "WIDTH": power_of_two(D)}
    where = (*_strided(q, k, axes=3), lengths, new)
    if lse is None:
        lse = q.new_empty((B, Hq, T), dtype=torch.float32)
        gpu.launch(
            log_sums, (B * Hq, -(-T // keys)), *where, sink_logits, lse, T, S, scaling, **shapes,
            SINKS=sink_logits is not None, KEYS=queries, QUERIES=keys, num_warps=4, num_stages=2,
        )  # fmt: skip
    mass = q.new_empty((B, H, G, S) if by_head else (B, H, S), dtype=torch.float32)
    each_row = weights is not None and len(weights) > 1
    gpu.launch(
        masses, (B * H * (G if by_head else 1), -(-S // keys)), *where, lse, weights,
        T if each_row else 0, mass, T, S, min(band or S, S), scaling, **shapes,
        HEADS=1 if by_head else G, WEIGHTS=weights is not None, KEYS=keys, QUERIES=queries,
        num_warps=8, num_stages=2,
    )  # fmt: skip
    return mass


def rank_by_observers(
    keys: Tensor, queries: Tensor, seen: Tensor, lengths: Tensor, window: Tensor, kernel: int,
    gqa: str, sink_logits: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What each slot of full rows is worth to `snapkv`; whatever comes for others is not used.

    Args:
        keys: oldest first, (R, Hkv, S, D).
        queries: scaled ones of the newest tokens, slot = position modulo their number,
            (R, Hq, observers, D).
        seen, lengths: tokens, and slots in use, before the step, int32, (R,).
        window: newest tokens that stay and score the others, at most as many as observe, (R,).

    Returns:
        float32, (R, Hkv, S); infinity where a slot must stay.
    """
    S, observers = keys.shape[2], queries.shape[2]
    ring = (seen[:, None] + 1 + torch.arange(observers, device=keys.device)) % observers
    q = queries.take_along_dim(ring.long()[:, None, :, None], 2)
    options: dict[str, Any] = {"by_head": True, "sink_logits": sink_logits}
    score = over_group(column_mass(q, keys, 1.0, lengths + 1, window, **options), gqa, 2)
    competes = (torch.arange(S, device=keys.device) < S - window[:, None])[:, None]
    pooled = functional.avg_pool1d(score.where(competes, 0), kernel, 1, kernel // 2)
    return pooled.where(competes, float("inf"))


def move(slots: Sequence[Tensor], table: Tensor, read: Tensor, most: Tensor, page: int = 1) -> None:
    """Move what stays of each row that is cut to its first slots.

    Args:
        slots: what follows a token, (rows, H, C, ...) each, contiguous.
        table, read, most: as `select` gives and takes them.
    """
    for x in slots:
        size = x[0, 0, 0].numel()
        width = min(power_of_two(size, 1), 64)
        gpu.launch(
            compact, (read.numel(), -(-size // width)),
            x, x.shape[2], table, table.shape[2], read, most,
            H=x.shape[1], PAGE=page, SIZE=size, WIDTH=width, MOVED=_tile(_MOVED), num_stages=1,
        )  # fmt: skip


def _strided(*tensors: Tensor, axes: int = 2) -> list[Any]:
    """Each with the strides of its first axes."""
    return [y for x in tensors for y in (x, *x.stride()[:axes])]


def _tile(size: int) -> int:
    return 16 if interpreted() else size


def _warps(numbers: int) -> int:
    return max(4, numbers // 512)
