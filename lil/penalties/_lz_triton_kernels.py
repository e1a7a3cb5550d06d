"""The Triton kernels of the LZ penalty; importing this imports triton.

A program goes over the rings of its rows a block of places at a time, the oldest first. What one
thread wrote others see behind a barrier. Sizes that change while a model decodes are not
specialised on.
"""

from __future__ import annotations

import triton
import triton.language as tl

EMPTY = tl.constexpr(-1)
PRINTED, RATE = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _tokens(tokens, head, size, j, mask):
    """The tokens at places `j`, counted from the oldest place of a ring."""
    at = head + 1 + j
    return tl.load(tokens + tl.where(at >= size, at - size, at), mask=mask, other=EMPTY)


@triton.jit
def _divided(a, b):
    """a / b, to the nearest number of their type."""
    result = a / b
    if a.dtype == tl.float32:  # there `/` is not exact
        result = tl.div_rn(a, b)
    return result


@triton.jit
def _put_nearest(scores, token, wanted, value, j):
    """Each wanted token's score becomes the `value` at the last of its places in a block."""
    same = (token[:, None, :] == token[:, :, None]) & wanted[:, None, :]
    later = same & (j[:, None, :] > j[:, :, None])
    last = wanted & (tl.sum(later.to(tl.int32), 2) == 0)
    tl.store(scores + token, value.to(scores.dtype.element_ty), mask=last)


@triton.jit
def _put_least(scores, token, wanted, value):
    """Each wanted token's score becomes the least `value` of its places, if that is less."""
    same = (token[:, None, :] == token[:, :, None]) & wanted[:, None, :]
    least = tl.min(tl.where(same, value[:, None, :], float("inf")), 2)
    there = tl.load(scores + token, mask=wanted, other=0.0).to(value.dtype)
    # The places of one token all write the same.
    least = tl.where(least < there, least, there)
    tl.store(scores + token, least.to(scores.dtype.element_ty), mask=wanted)


@triton.jit(do_not_specialize=["B", "C", "n"], do_not_specialize_on_alignment=["history"])
def load(
    tokens,  # (B, C)
    lengths,  # (B, C)
    marks,  # (B, 2)
    shapes,  # (B, 3)
    history,  # (B, n) int64
    B,
    C,
    n,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of places of some rows, from their history."""
    b = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    there = b < B
    size = tl.load(shapes + 3 * b, mask=there, other=1)
    buffer = tl.load(shapes + 3 * b + 1, mask=there, other=0)
    i = tl.arange(0, BLOCK)[None, :]
    end = history + (b + 1) * n  # behind the newest token
    count = size * 0
    for start in range(0, n, BLOCK):
        back = start + i
        tile = tl.load(end - 1 - back, mask=there & (back < n) & (back < size), other=EMPTY)
        count += tl.sum((tile != EMPTY).to(tl.int32), 1)[:, None]
    j = tl.program_id(1) * BLOCK + i
    inside = there & (j >= size - count) & (j < size)
    token = tl.load(end - size + j, mask=inside, other=EMPTY)
    tl.store(tokens + b * C + j, token.to(tl.int32), mask=there & (j < C))
    length = tl.zeros([ROWS, BLOCK], tl.int32)
    running = inside & (j < size - 1)
    for k in range(tl.minimum(tl.max(tl.max(buffer, 1), 0), n)):
        running = running & (k < buffer) & (j - k >= size - count)
        here = tl.load(end - size + j - k, mask=running, other=EMPTY)
        newer = tl.load(end - 1 - k, mask=there, other=EMPTY)
        running = running & (here == newer)
        length += running.to(tl.int32)
    tl.store(lengths + b * C + j, length, mask=there & (j < C))
    if tl.program_id(1) == 0:
        tl.store(marks + 2 * b, size - 1, mask=there)
        tl.store(marks + 2 * b + 1, count, mask=there)


@triton.jit(
    do_not_specialize=["B", "C", "V", "stride", "D", "E"],
    do_not_specialize_on_alignment=["newest", "live", "places", "scores"],
)
def step(
    tokens,  # (B, C)
    lengths,  # (B, C)
    marks,  # (B, 2)
    shapes,  # (B, 3)
    alphas,  # (B,)
    exempt,  # (B, E); anything where there is none
    newest,  # (B,) int64; anything without NEWEST
    live,  # (B,); anything without LIVE
    places,  # (B,) int64; anything without PLACES
    scores,  # (rows, V); this and the next six anything without SCORES
    old,  # (B, C), in the type to compute in
    full,  # (1,), log2 V
    logarithms,
    derived,  # (lengths, D)
    printed,  # (lengths, D)
    B,
    C,
    V,
    stride,
    D,
    E,
    NEWEST: tl.constexpr,
    LIVE: tl.constexpr,
    PLACES: tl.constexpr,
    SCORES: tl.constexpr,
    EXEMPT: tl.constexpr,  # E padded, 0 where there is none
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Append a token to some rows, then lower their scores."""
    b = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    there = b < B
    tokens += b * C
    lengths += b * C
    marks += 2 * b
    size = tl.load(shapes + 3 * b, mask=there, other=1)
    buffer = tl.load(shapes + 3 * b + 1, mask=there, other=1)
    head = tl.load(marks, mask=there, other=0)
    count = tl.load(marks + 1, mask=there, other=0)
    widest = tl.max(tl.max(size, 1), 0)
    i = tl.arange(0, BLOCK)[None, :]
    if NEWEST:
        token = tl.load(newest + b, mask=there, other=EMPTY).to(tl.int32)
        grows = there
        if LIVE:
            grows = tl.load(live + b, mask=there, other=0) != 0
        # Everybody has read the marks.
        tl.debug_barrier()
        head = tl.where(grows, tl.where(head + 1 == size, 0, head + 1), head)
        count = tl.where(grows, tl.minimum(count + 1, size), count)
        tl.store(tokens + head, token, mask=grows)
        tl.store(marks, head, mask=there)
        tl.store(marks + 1, count, mask=there)
        for start in range(0, widest, BLOCK):
            j = start + i
            used = grows & (j < size) & (j >= size - count)
            tile = tl.where(j == size - 1, token, _tokens(tokens, head, size, j, used))
            longer = tl.minimum(tl.load(lengths + j, mask=used, other=0) + 1, buffer)
            tl.store(lengths + j, tl.where(tile == token, longer, 0), mask=used)
    if SCORES:
        tl.debug_barrier()
        formula = tl.load(shapes + 3 * b + 2, mask=there, other=0)
        top = tl.load(full)
        alpha = tl.load(alphas + b, mask=there, other=0.0).to(top.dtype)
        old += b * C
        row = b
        if PLACES:
            row = tl.load(places + b, mask=there, other=0)
        scores += row * stride
        if EXEMPT > 0:
            e = tl.arange(0, EXEMPT)[None, :]
            spared = tl.load(exempt + b * E + e, mask=there & (e < E), other=EMPTY)
            known = (spared >= 0) & (spared < V)
            exempted = tl.load(scores + spared, mask=known, other=0.0)
        rate = formula == RATE
        begin = tl.where(rate, size - count + buffer, size - count)
        end = tl.where(rate, size, size - buffer)
        longest = tl.zeros([ROWS], tl.int32)
        for start in range(0, widest, BLOCK):
            j = start + i
            inside = there & (j >= begin) & (j < end)
            tile = _tokens(tokens, head, size, j, inside)
            priced = inside & (tile >= 0) & (tile < V)
            was = tl.load(scores + tile, mask=priced, other=0.0)
            tl.store(old + j, was.to(top.dtype), mask=priced)
            length = tl.load(lengths + j, mask=inside, other=0)
            longest = tl.maximum(longest, tl.max(tl.minimum(length, j + 1), 1))
        tl.debug_barrier()
        for start in range(0, tl.max(tl.max(tl.where(rate, end, 0), 1), 0), BLOCK):
            j = start + i
            inside = there & rate & (j >= begin) & (j < end)
            tile = _tokens(tokens, head, size, j, inside)
            priced = inside & (tile >= 0) & (tile < V)
            length = tl.load(lengths + j - 1, mask=priced, other=0) + 1
            bits = tl.load(logarithms + size - j + 1, mask=priced, other=0.0)
            bits += tl.load(logarithms + length, mask=priced, other=0.0)
            bits = tl.minimum(_divided(bits, length.to(top.dtype)), top)
            value = tl.load(old + j, mask=priced, other=0.0) + alpha * (bits - top)
            _put_least(scores, tile, priced, value)
            tl.debug_barrier()
        most = tl.max(tl.max(tl.where(rate, 0, end), 1), 0)
        for start in range(0, most, BLOCK):
            j = start + i
            inside = there & (j >= begin) & (j < end) & (formula != RATE)
            tile = _tokens(tokens, head, size, j, inside)
            priced = inside & (tile >= 0) & (tile < V)
            bits = tl.load(logarithms + end - j, mask=priced, other=0.0)
            value = tl.load(old + j, mask=priced, other=0.0) + alpha * (bits - top)
            _put_nearest(scores, tile, priced, value, j)
            tl.debug_barrier()
        longest = longest[:, None]
        for start in range(0, most, BLOCK):
            j = start + i
            inside = there & (j > begin) & (j < end) & (formula != RATE) & (longest > 0)
            length = tl.load(lengths + j - 1, mask=inside, other=0)
            tile = _tokens(tokens, head, size, j, inside)
            wanted = inside & (tile >= 0) & (tile < V) & (tl.minimum(length, j) == longest)
            nearest = wanted & (formula == PRINTED)
            at = longest.to(tl.int64) * D + end - j + 1
            bits = tl.load(derived + at, mask=wanted & (formula != PRINTED), other=0.0)
            bits += tl.load(printed + at, mask=nearest, other=0.0)
            value = tl.load(old + j, mask=wanted, other=0.0) + alpha * (bits - top)
            _put_nearest(scores, tile, nearest, value, j)
            _put_least(scores, tile, wanted & (formula != PRINTED), value)
            tl.debug_barrier()
        if EXEMPT > 0:
            tl.store(scores + spared, exempted, mask=known)
