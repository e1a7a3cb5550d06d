"""The kernels of decode steps whose lengths are on the device; importing this imports triton.

A set is what one KV head of one row reads, or one query head where each reads its own; its M
queries read it together. `attend` splits the slots of a set among programs, `merge` joins them. A
grid follows from capacities alone: every program reads its row's length, and has nothing to do
where its share is empty or the row is not live. Sums are in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attention.engines.gpu import interpreted

# Larger than the exponent of anything that is there, and finite: minus infinity less itself is NaN.
NOTHING = tl.constexpr(-1.0e30)
# Above what any slot is worth.
NEVER = tl.constexpr(0x7FFFFFFFFFFFFFFF)
WORD = tl.constexpr(0xFFFFFFFF)
INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def product(a, b, scaling):
    """a b in float32; float32 is not rounded to the tensor cores' 19 bits."""
    # The interpreter multiplies the bits of bfloat16 as if they were integers.
    if INTERPRETED and a.dtype == tl.bfloat16:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee") * scaling


@triton.jit
def turn(cos, sin, start, end, d, TURN: tl.constexpr):
    """How numbers d of a vector turn from one position to another, see `attention.core.ropes`.

    A factor of each, one of its partner, and which that is.
    """
    half: tl.constexpr = TURN // 2
    turns = d < TURN
    c0 = tl.load(cos + start * TURN + d, mask=turns, other=1.0)
    s0 = tl.load(sin + start * TURN + d, mask=turns, other=0.0)
    c1 = tl.load(cos + end * TURN + d, mask=turns, other=1.0)
    s1 = tl.load(sin + end * TURN + d, mask=turns, other=0.0)
    size = c0 * c0 + s0 * s0
    c, s = (c1 * c0 + s1 * s0) / size, (s1 * c0 - c1 * s0) / size
    partner = tl.where(d < half, d + half, tl.where(turns, d - half, d))
    return c, tl.where(d < half, -s, s), partner


@triton.jit
def _nearer(query, q, cos, sin, was, limit, d, mask, TURN: tl.constexpr):
    """Queries as if all that `limit` lacks were not between: keys stay as they were turned."""
    c, s, partner = turn(cos, sin, was, was - tl.maximum(was + 1 - limit, 0), d, TURN)
    pair = tl.load(q + partner[None, :], mask=mask, other=0.0)
    return (query * c[None, :] + pair * s[None, :]).to(query.dtype)


@triton.jit
def ordered(x):
    """Floats as int32 of the same order; -0.0 is below 0.0."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _share(length, splits, TILE: tl.constexpr):
    """Slots of each split, whole tiles; those that have any follow, in `merge` as in `attend`."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, splits), TILE), 1) * TILE


@triton.jit
def filled(lengths, r, limit, splits, s, TILE: tl.constexpr):
    """Slots that are read with the new token's, and which splits s have any."""
    length = tl.minimum(tl.load(lengths + r) + 1, limit)
    return length, s < tl.cdiv(length, _share(length, splits, TILE))


@triton.jit
def _read(
    query, keys, values,  # of one head
    begin, end, own,  # slots; one of them is not read
    table,  # pages of the slots, TABLE
    logits, capacity, scaling, top, total, mixed, count, rows, d,
    M: tl.constexpr, D: tl.constexpr, TABLE: tl.constexpr, PAGE: tl.constexpr,
    FIRST: tl.constexpr, LOGITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Add what queries get of some slots to what they got."""
    inside = d < D
    for start in tl.range(begin, end, TILE, num_stages=5 if TABLE else 3):
        j = start + tl.arange(0, TILE)
        there, slot = (j < end) & (j != own), j.to(tl.int64)
        if TABLE:
            slot = tl.load(table + j // PAGE, mask=there, other=0).to(tl.int64) * PAGE + j % PAGE
            if FIRST % PAGE:  # the first tokens have pages of their own
                there = there & ((j < FIRST) | (j >= tl.cdiv(FIRST, PAGE) * PAGE))
        mask = inside[:, None] & there[None, :]
        key = tl.load(keys + slot[None, :] * D + d[:, None], mask=mask, other=0.0)
        mask = there[:, None] & inside[None, :]
        value = tl.load(values + slot[:, None] * D + d[None, :], mask=mask, other=0.0)
        scores = product(query, key, scaling)
        if LOGITS:
            mask = (rows < M)[:, None] & there[None, :]
            tl.store(logits + rows[:, None] * capacity + slot[None, :], scores, mask=mask)
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + product(weights.to(value.dtype), value, 1.0)
        top = higher
        count += tl.sum(there.to(tl.int32), 0)
    return top, total, mixed, count


@triton.jit
def _taken(query, k, v, keys, values, own, scaling, d, D: tl.constexpr):
    """Store the new token of one head in a slot: its logit of each query, and its value."""
    inside, column = d < D, tl.arange(0, 16)
    new = (column == 0)[None, :] & inside[:, None]
    key = tl.load(k + d[:, None] + 0 * column, mask=new, other=0.0)
    top = tl.sum(product(query, key, 1.0), 1) * scaling  # the other columns are 0
    value, at = tl.load(v + d, mask=inside, other=0.0), own.to(tl.int64) * D + d
    tl.store(keys + at, tl.load(k + d, mask=inside), mask=inside)
    tl.store(values + at, value, mask=inside)
    return top, value.to(tl.float32)[None, :]


@triton.jit
def attend(
    q, q_r, q_h,  # (R, Hq, 1, D), D contiguous
    k, k_r, k_h,
    v, v_r, v_h,  # (R, H / SHARED, 1, D), D contiguous
    keys, values, capacity, limit, lengths,  # as in `gpu.Store`, rows at least R
    at,  # "next": (rows, H), the slot; "ring": (R,), first slots that stay
    position, memory, queries,  # as in `gpu.Store` and `gpu.Eviction`
    page_keys, page_values, page_capacity, table, width, read,  # as in `gpu.Pages`
    cos, sin,  # (positions, TURN): the model's angles
    scaling, seen, live,  # (R,): tokens of each row before this step; 0 where nothing is done
    part, sums, parts, own_parts, logits,  # as in `gpu.Splits`; the parts of slots come first
    reads,  # (R, H, parts), COUNT: slots that were read
    H: tl.constexpr, SHARED: tl.constexpr, M: tl.constexpr, D: tl.constexpr, COUNT: tl.constexpr,
    PLACE: tl.constexpr,  # "append", "ring", "next", "paged"; "stored": the token has its slot
    SLOTS: tl.constexpr, TABLE: tl.constexpr,  # whether slots are read, and whether pages are
    PAGE: tl.constexpr, FIRST: tl.constexpr,  # tokens on pages of their own
    POSITIONS: tl.constexpr, MEMORY: tl.constexpr, OBSERVERS: tl.constexpr, LOGITS: tl.constexpr,
    TURN: tl.constexpr,  # numbers of a key that are turned; 0 where keys are read as they are
    ROWS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,  # M and D, padded; slots at once
):  # fmt: skip
    """Store the new token of each set, and what its queries get of the slots of one split.

    Split 0 takes the new token from the inputs and stores it; nobody loads its slot.
    """
    n, split = tl.program_id(0), tl.program_id(1)
    r, h = n // H, n % H
    place = n.to(tl.int64) * parts + split
    if COUNT:
        tl.store(reads + place, 0)
    if tl.load(live + r) == 0:
        return
    if not TABLE or (SLOTS and split < own_parts):
        length = tl.minimum(tl.load(lengths + r) + 1, limit)
        each = _share(length, own_parts, TILE)
        begin = split * each
    else:
        length = tl.load(read + n)
        each = _share(length, parts - own_parts, TILE)
        begin = (split - own_parts) * each
    end = tl.minimum(begin + each, length)
    if begin >= end:
        return
    rows, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    wanted = (rows < M)[:, None] & (d < D)[None, :]
    was, wide, head = tl.load(seen + r), r.to(tl.int64), h // SHARED
    q += wide * q_r + (h * M + rows)[:, None] * q_h
    query = tl.load(q + d[None, :], mask=wanted, other=0.0)
    own, count, kv = -1, 0, wide * (H // SHARED) + head
    keys += kv * capacity * D
    values += kv * capacity * D
    logits += n.to(tl.int64) * M * capacity
    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    if PLACE != "stored" and PLACE != "table":
        own = tl.load(lengths + r)
        if PLACE == "next":
            own = tl.load(at + n).to(tl.int32)
        if PLACE == "ring":  # behind the first ones, which stay
            first = tl.load(at + r)
            own = tl.where(was < first, was, first + (was - first) % (limit - first))
        if split == 0:
            k += wide * k_r + head * k_h
            v += wide * v_r + head * v_h
            top, value = _taken(query, k, v, keys, values, own, scaling, d, D)
            total, mixed, count = total + 1.0, mixed + value, 1
            slot = n.to(tl.int64) * capacity + own
            if POSITIONS:
                tl.store(position + slot, was)
            for i in tl.static_range(MEMORY):
                tl.store(memory + slot * MEMORY + i, 0.0)
            if OBSERVERS:
                line = ((wide * H + h) * M + rows) * OBSERVERS + was % OBSERVERS
                scaled = (query.to(tl.float32) * scaling).to(query.dtype)
                tl.store(queries + line[:, None] * D + d[None, :], scaled, mask=wanted)
            if LOGITS:
                tl.store(logits + rows * capacity + own, top, mask=rows < M)
        if PLACE == "paged":  # the last slot of the pages is the new token's
            own = length - 1
    if not TABLE or (SLOTS and split < own_parts):
        start = begin
        if PLACE == "ring" and TURN > 0:
            start = tl.maximum(begin, first)
        top, total, mixed, count = _read(
            query, keys, values, start, end, own, table, logits, capacity, scaling, top, total,
            mixed, count, rows, d, M, D, False, 1, 0, LOGITS, TILE,
        )  # fmt: skip
        if PLACE == "ring" and TURN > 0:
            query = _nearer(query, q, cos, sin, was, limit, d, wanted, TURN)
            top, total, mixed, count = _read(
                query, keys, values, begin, tl.minimum(end, first), own, table, logits, capacity,
                scaling, top, total, mixed, count, rows, d, M, D, False, 1, 0, LOGITS, TILE,
            )  # fmt: skip
    else:
        if TURN:
            query = _nearer(query, q, cos, sin, was, limit, d, wanted, TURN)
        top, total, mixed, count = _read(
            query, page_keys + kv * page_capacity * D, page_values + kv * page_capacity * D,
            begin, end, own, table + n.to(tl.int64) * width, logits, capacity, scaling, top, total,
            mixed, count, rows, d, M, D, True, PAGE, FIRST, False, TILE,
        )  # fmt: skip
    line = place * M + rows
    plane = tl.num_programs(0).to(tl.int64) * parts * M
    tl.store(part + line[:, None] * D + d[None, :], mixed, mask=wanted)
    tl.store(sums + line, top, mask=rows < M)
    tl.store(sums + plane + line, total, mask=rows < M)
    if COUNT:
        tl.store(reads + place, count)


@triton.jit
def joined(sums, plane, line, there, sinks, head, SINKS: tl.constexpr):
    """Highest logit of one query, the weight of each split, and the total, all splits together."""
    tops = tl.load(sums + line, mask=there, other=NOTHING)
    totals = tl.load(sums + plane + line, mask=there, other=0.0)
    top, more = tl.max(tops, 0), 0.0
    if SINKS:  # a logit without a value
        sink = tl.load(sinks + head).to(tl.float32)
        top = tl.maximum(top, sink)
        more = tl.exp(sink - top)
    weights = tl.exp(tops - top)
    return top, weights, tl.sum(weights * totals, 0) + more


@triton.jit
def _scrambled(x):
    """A one-to-one scrambling of 32-bit words, held in int64."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)


@triton.jit
def merge(
    part, sums, parts, own_parts, lengths, limit, read,  # as in `attend`, which leaves some
    sinks,  # (Hq,), SINKS: further logits of the model
    seen, live, out,  # (R, Hq, D), contiguous; zeros where nothing was read
    logits, capacity, position, memory, following, spared, recent, numbers,  # as in `gpu.Eviction`
    H: tl.constexpr, M: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr, TABLE: tl.constexpr,
    SINKS: tl.constexpr,
    WORTH: tl.constexpr,  # "score", "last", "number"; "mass" where nothing is dropped; or ""
    MEMORY: tl.constexpr,  # numbers remembered of a slot: 0, 1, or one a query
    HEADS: tl.constexpr,  # sets that drop the same token
    WIDTH: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr,  # D and parts, padded
    BLOCK: tl.constexpr,  # slots that program M looks at at once
):  # fmt: skip
    """Join the splits of one query. Program M, where there is one, learns, and chooses what goes.

    It adds to what is remembered of each slot the probability that the set's queries gave it, in
    one order for all slots; a mean ranks as its sum does. It chooses where the next token goes:
    behind the others until `limit` slots are in use, then over the token worth least, among equals
    the newest.
    """
    n, g = tl.program_id(0), tl.program_id(1)
    r, h = n // H, n % H
    alive, was = tl.load(live + r) != 0, tl.load(seen + r)
    s, d, there, length = tl.arange(0, SPLITS), tl.arange(0, WIDTH), tl.arange(0, SPLITS) < 0, 0
    if SLOTS:
        length, there = filled(lengths, r, limit, own_parts, s, TILE)
    if TABLE:
        more = tl.load(read + n)
        used = tl.cdiv(more, _share(more, parts - own_parts, TILE))
        there = there | ((s >= own_parts) & (s < own_parts + used))
    there = there & alive
    plane = tl.num_programs(0).to(tl.int64) * parts * M
    lines = (n.to(tl.int64) * parts + s) * M
    if g < M:
        top, weights, total = joined(sums, plane, lines + g, there, sinks, h * M + g, SINKS)
        mask = there[:, None] & (d < D)[None, :]
        mixed = tl.load(part + (lines + g)[:, None] * D + d[None, :], mask=mask, other=0.0)
        mixed = tl.sum(weights[:, None] * mixed, 0) / tl.where(total == 0.0, 1.0, total)
        tl.store(out + (n.to(tl.int64) * M + g) * D + d, mixed, mask=d < D)
    if WORTH != "":  # noqa: SIM102 - settled when it is compiled
        if (g == M) & alive & (h % HEADS == 0):
            best, victim = tl.full([], NEVER, tl.int64), length - 1
            for start in range(0, length, BLOCK):
                slot = start + tl.arange(0, BLOCK)
                inside = slot < length
                at = n.to(tl.int64) * capacity + slot
                worth = tl.zeros([BLOCK], tl.float32)
                if WORTH != "number":
                    for i in range(HEADS):
                        for m in tl.static_range(M):
                            line, head = lines + i * parts * M + m, (h + i) * M + m
                            top, _, total = joined(sums, plane, line, there, sinks, head, SINKS)
                            query = ((n + i).to(tl.int64) * M + m) * capacity
                            logit = tl.load(logits + query + slot, mask=inside, other=NOTHING)
                            gain = tl.exp(logit - top) / total
                            if MEMORY > 1:
                                cell = memory + at * MEMORY + m
                                gain += tl.load(cell, mask=inside, other=0.0)
                                tl.store(cell, gain, mask=inside)
                                worth = tl.maximum(worth, gain)
                            else:
                                worth += gain
                    if MEMORY == 1:
                        worth += tl.load(memory + at, mask=inside, other=0.0)
                        tl.store(memory + at, worth, mask=inside)
                if WORTH != "mass":
                    place = tl.load(position + at, mask=inside, other=0)
                    if WORTH == "number":
                        rank = _scrambled((tl.load(numbers + h) + place) & WORD)
                    else:
                        rank = ordered(worth + 0.0).to(tl.int64)  # both zeros are one
                    first, last = tl.load(spared + r), was + 2 - tl.load(recent + r)
                    stays = (place < first) | (place >= last)
                    # Newer tokens come first among equals.
                    rank = (rank << 31) | (0x7FFFFFFF - place).to(tl.int64)
                    rank = tl.where(inside & (stays == 0), rank, NEVER)
                    least = tl.min(rank, 0)
                    lost = tl.max(tl.where(rank == least, slot, -1), 0)
                    victim = tl.where(least < best, lost, victim)
                    best = tl.minimum(best, least)
            if WORTH != "mass":
                chosen = tl.where(was + 1 < limit, was + 1, victim)
                for i in range(HEADS):
                    tl.store(following + n + i, chosen)
