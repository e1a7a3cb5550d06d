"""The kernels of decode steps whose lengths are on the device; importing this imports triton.

A set is what one KV head of one row reads, or one query head where each reads its own; its M
queries read it together. `attend` splits the slots of a set among programs, `merge` joins them. A
grid follows from capacities alone: every program reads its row's length, and has nothing to do
where its share is empty or the row is not live. Sums are in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Larger than the exponent of anything that is there, and finite: minus infinity less itself is NaN.
NOTHING = tl.constexpr(-1.0e30)
# Above what any slot is worth.
NEVER = tl.constexpr(0x7FFFFFFFFFFFFFFF)
WORD = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _product(a, b, WIDEN: tl.constexpr):
    """a b in float32; float32 is not rounded to the tensor cores' 19 bits."""
    if WIDEN:  # the interpreter multiplies the bits of bfloat16 as if they were integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _length(lengths, n, r, limit, TABLE: tl.constexpr):
    """Slots that a set reads in this step, the new token's among them."""
    if TABLE:
        length = tl.load(lengths + n).to(tl.int32)
    else:
        length = tl.minimum(tl.load(lengths + r) + 1, limit)
    return length


@triton.jit
def _share(length, splits, TILE: tl.constexpr):
    """Slots of each split, whole tiles; those that have any follow, in `merge` as in `attend`."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, splits), TILE), 1) * TILE


@triton.jit
def _own_slot(at, n, r, was, stored, limit, PLACE: tl.constexpr):
    """Where the new token goes."""
    if PLACE == "next":
        own = tl.load(at + n).to(tl.int32)
    elif PLACE == "ring":  # behind the first ones, which stay
        first = tl.load(at + r)
        own = tl.where(was < first, was, first + (was - first) % (limit - first))
    else:
        own = stored
    return own


@triton.jit
def _turned(q, query, was, back, cos, sin, d, TURN: tl.constexpr):
    """Queries at position `was` as they would be `back` positions earlier; see `ropes.turn`."""
    inside = d < TURN
    c0 = tl.load(cos + was.to(tl.int64) * TURN + d, mask=inside, other=1.0)
    s0 = tl.load(sin + was.to(tl.int64) * TURN + d, mask=inside, other=0.0)
    c1 = tl.load(cos + (was - back).to(tl.int64) * TURN + d, mask=inside, other=1.0)
    s1 = tl.load(sin + (was - back).to(tl.int64) * TURN + d, mask=inside, other=0.0)
    size = c0 * c0 + s0 * s0
    c, s = (c1 * c0 + s1 * s0) / size, (s1 * c0 - c1 * s0) / size
    s = tl.where(d < TURN // 2, -s, s)
    other = tl.where(d < TURN // 2, d + TURN // 2, d - TURN // 2)
    pair = tl.load(q + other[None, :], mask=inside[None, :], other=0.0)
    return (query * c[None, :] + pair * s[None, :]).to(query.dtype)


@triton.jit
def attend(
    q,  # (R, Hq, 1, D), D contiguous
    k,
    v,  # (R, H / SHARED, 1, D), D contiguous
    q_r,
    q_h,
    k_r,
    k_h,
    v_r,
    v_h,
    keys,
    values,  # (rows, H / SHARED, capacity, D), contiguous; rows at least R
    capacity,
    limit,  # slots in use, at most capacity
    scaling,
    seen,  # (R,), tokens of each row before this step; so are the lengths
    live,  # (R,), 0 where nothing is read or written
    lengths,  # (R,), slots in use before this step; with a table (R, H), slots to read
    at,  # "next": (rows, H), the slot; "ring": (R,), first slots that stay
    position,  # (rows, H, capacity), POSITIONS
    memory,  # (rows, H, capacity, MEMORY)
    queries,  # (rows, Hq, OBSERVERS, D)
    table,
    width,  # "table": pages of each set, ascending, (R, H, width)
    cos,
    sin,  # (positions, TURN): the model's angles
    part,  # (R, H, parts, M, D), not divided by the totals
    sums,  # (2, R, H, parts, M): highest logits, and totals
    parts,
    before,  # parts of other slots that come first
    logits,  # (R, H, M, capacity), LOGITS
    reads,  # (R, H, parts), COUNT: slots that were read
    H: tl.constexpr,
    SHARED: tl.constexpr,  # sets that share a KV head
    M: tl.constexpr,
    D: tl.constexpr,
    PLACE: tl.constexpr,  # "append", "ring", "next"; "stored", "table": the token has its slot
    PAGE: tl.constexpr,
    FIRST: tl.constexpr,
    SPARE: tl.constexpr,  # "table": so many slots behind the FIRST ones are empty
    POSITIONS: tl.constexpr,
    MEMORY: tl.constexpr,
    OBSERVERS: tl.constexpr,
    TURN: tl.constexpr,  # numbers of a key that are turned; 0 where keys are read as they are
    LOGITS: tl.constexpr,
    COUNT: tl.constexpr,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,  # M padded
    WIDTH: tl.constexpr,  # D padded
    TILE: tl.constexpr,  # slots looked at at once
):
    """Store the new token of each set, and what its queries get of the slots of one split.

    Split 0 takes the new token from the inputs and stores it; nobody loads its slot.
    """
    n, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    r, h = n // H, n % H
    place = n.to(tl.int64) * parts + before + split
    if COUNT:
        tl.store(reads + place, 0)
    if tl.load(live + r) == 0:
        return
    TABLE: tl.constexpr = PLACE == "table"
    length = _length(lengths, n, r, limit, TABLE)
    each = _share(length, splits, TILE)
    begin = split * each
    end = tl.minimum(begin + each, length)
    if begin >= end:
        return
    rows, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside, wanted = d < D, (tl.arange(0, ROWS) < M)[:, None] & (tl.arange(0, WIDTH) < D)[None, :]
    was, wide = tl.load(seen + r), r.to(tl.int64)
    q += wide * q_r + (h * M + rows)[:, None] * q_h
    query = tl.load(q + d[None, :], mask=wanted, other=0.0)
    kv = (wide * (H // SHARED) + h // SHARED) * capacity * D
    keys += kv
    values += kv
    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    count, own = 0, -1
    if PLACE != "table" and PLACE != "stored":
        own = _own_slot(at, n, r, was, tl.load(lengths + r), limit, PLACE)
        if split == 0:
            k += wide * k_r + h * k_h
            column = tl.arange(0, 16)
            new = (column == 0)[None, :] & inside[:, None]
            logit = _product(
                query, tl.load(k + d[:, None] + 0 * column, mask=new, other=0.0), WIDEN
            )
            top = tl.sum(logit, 1) * scaling  # the other columns are 0
            total += 1.0
            value = tl.load(v + wide * v_r + h * v_h + d, mask=inside, other=0.0)
            mixed += value.to(tl.float32)[None, :]
            tl.store(keys + own.to(tl.int64) * D + d, tl.load(k + d, mask=inside), mask=inside)
            tl.store(values + own.to(tl.int64) * D + d, value, mask=inside)
            slot = n.to(tl.int64) * capacity + own
            if POSITIONS:
                tl.store(position + slot, was)
            for i in tl.static_range(MEMORY):
                tl.store(memory + slot * MEMORY + i, 0.0)
            if OBSERVERS:
                head = ((wide * H + h) * M + rows) * OBSERVERS + was % OBSERVERS
                scaled = (query.to(tl.float32) * scaling).to(query.dtype)
                tl.store(queries + head[:, None] * D + d[None, :], scaled, mask=wanted)
            if LOGITS:
                tl.store(logits + (n.to(tl.int64) * M + rows) * capacity + own, top, mask=rows < M)
            count += 1
    if TURN:  # keys stay where they were: the queries come nearer
        back = tl.maximum(was + 1 - limit, 0)
        near = _turned(q, query, was, back, cos, sin, d, TURN)
        if TABLE:
            query = near
        else:
            first = tl.load(at + r)

    for start in range(begin, end, TILE):
        j = start + tl.arange(0, TILE)
        there = j < end
        if TABLE:
            page = tl.load(table + n.to(tl.int64) * width + j // PAGE, mask=there, other=0)
            slot = page.to(tl.int64) * PAGE + j % PAGE
            if SPARE:
                there = there & ((j < FIRST) | (j >= FIRST + SPARE))
        else:
            there = there & (j != own)
            slot = j.to(tl.int64)
        key = tl.load(
            keys + slot[None, :] * D + d[:, None], mask=inside[:, None] & there[None, :], other=0.0
        )
        value = tl.load(
            values + slot[:, None] * D + d[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        scores = _product(query, key, WIDEN) * scaling
        if TURN and not TABLE:  # noqa: SIM102 - the first is settled when it is compiled
            if start < first:
                turned = _product(near, key, WIDEN) * scaling
                scores = tl.where((j < first)[None, :], turned, scores)
        if LOGITS:
            line = (n.to(tl.int64) * M + rows)[:, None] * capacity + slot[None, :]
            tl.store(logits + line, scores, mask=(rows < M)[:, None] & there[None, :])
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + _product(weights.to(value.dtype), value, WIDEN)
        top = higher
        count += tl.sum(there.to(tl.int32), 0)

    line = place * M + rows
    plane = tl.num_programs(0).to(tl.int64) * parts * M
    tl.store(part + line[:, None] * D + d[None, :], mixed, mask=wanted)
    tl.store(sums + line, top, mask=rows < M)
    tl.store(sums + plane + line, total, mask=rows < M)
    if COUNT:
        tl.store(reads + place, count)


@triton.jit
def _joined(sums, plane, line, there, sinks, head, SINKS: tl.constexpr):
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
def _ordered(x):
    """Floats as integers of the same order, in int64; both zeros are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def merge(
    part,
    sums,  # as `attend` leaves them
    parts,
    sinks,  # (Hq,), SINKS: further logits of the model
    seen,
    live,
    lengths,
    limit,  # as in `attend`
    splits,  # of these slots
    read,  # (R, H): slots to read of tables, whose parts come behind; TABLE
    out,  # (R, Hq, D), contiguous; zeros where nothing was read
    lse,  # (R, Hq), LSE
    logits,
    capacity,
    position,
    memory,
    following,  # (rows, H): the slot of the next token
    spared,  # (R,): tokens of lower positions stay
    recent,  # (R,): newest tokens, the next one among them, that stay
    numbers,  # (H,), WORTH "number"
    H: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
    SLOTS: tl.constexpr,  # whether other slots than those of tables are read
    TABLE: tl.constexpr,
    SINKS: tl.constexpr,
    LSE: tl.constexpr,
    WORTH: tl.constexpr,  # "score", "last", "number"; "mass" where nothing is dropped; or ""
    MEMORY: tl.constexpr,  # numbers remembered of a slot: 0, 1, or one a query
    HEADS: tl.constexpr,  # sets that drop the same token
    DECAY: tl.constexpr,
    MEAN: tl.constexpr,
    AGE: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,  # splits padded
    TILE: tl.constexpr,  # as in `attend`
    BLOCK: tl.constexpr,  # slots that program M looks at at once
):
    """Join the splits of one query. Program M, where there is one, learns, and chooses what goes.

    It adds to what is remembered of each slot the probability that the set's queries gave it, in
    one order for all slots, and chooses where the next token goes: behind the others until `limit`
    slots are in use, then over the token worth least, among equals the newest.
    """
    n, g = tl.program_id(0), tl.program_id(1)
    r, h = n // H, n % H
    alive, was = tl.load(live + r) != 0, tl.load(seen + r)
    s, d, there = tl.arange(0, SPLITS), tl.arange(0, WIDTH), tl.arange(0, SPLITS) < 0
    length = 0
    if SLOTS:
        length = _length(lengths, n, r, limit, False)
        there = s < tl.cdiv(length, _share(length, splits, TILE))
    if TABLE:
        more = _length(read, n, r, limit, True)
        used = tl.cdiv(more, _share(more, parts - splits, TILE))
        there = there | ((s >= splits) & (s < splits + used))
    there = there & alive
    plane = tl.num_programs(0).to(tl.int64) * parts * M
    lines = (n.to(tl.int64) * parts + s) * M
    if g < M:
        top, weights, total = _joined(sums, plane, lines + g, there, sinks, h * M + g, SINKS)
        mixed = tl.load(
            part + (lines + g)[:, None] * D + d[None, :],
            mask=there[:, None] & (d < D)[None, :],
            other=0.0,
        )
        total = tl.where(total == 0.0, 1.0, total)
        mixed = tl.sum(weights[:, None] * mixed, 0) / total
        tl.store(out + (n.to(tl.int64) * M + g) * D + d, mixed, mask=d < D)
        if LSE:
            tl.store(lse + n.to(tl.int64) * M + g, top + tl.log(total))
    if WORTH != "":  # noqa: SIM102 - likewise
        if (g == M) & alive & (h % HEADS == 0):
            best, victim = tl.full([], NEVER, tl.int64), length - 1
            if WORTH != "mass":
                first, last = tl.load(spared + r), was + 2 - tl.load(recent + r)
            for start in range(0, length, BLOCK):
                slot = start + tl.arange(0, BLOCK)
                inside = slot < length
                at = n.to(tl.int64) * capacity + slot
                if WORTH != "mass":
                    place = tl.load(position + at, mask=inside, other=0)
                if WORTH == "number":
                    rank = _scrambled((tl.load(numbers + h) + place) & WORD)
                else:
                    worth = tl.zeros([BLOCK], tl.float32)
                    for i in range(HEADS):
                        for m in tl.static_range(M):
                            line = lines + i * parts * M + m
                            top, _, total = _joined(
                                sums, plane, line, there, sinks, (h + i) * M + m, SINKS
                            )
                            query = ((n + i).to(tl.int64) * M + m) * capacity
                            logit = tl.load(logits + query + slot, mask=inside, other=NOTHING)
                            gain = tl.exp(logit - top) / total
                            if MEMORY > 1:
                                cell = memory + at * MEMORY + m
                                gain += tl.load(cell, mask=inside, other=0.0) * DECAY
                                tl.store(cell, gain, mask=inside)
                                worth = tl.maximum(worth, gain)
                            else:
                                worth += gain
                    if MEMORY == 1:
                        worth += tl.load(memory + at, mask=inside, other=0.0) * DECAY
                        tl.store(memory + at, worth, mask=inside)
                    if MEAN:
                        worth = worth / (HEADS * M)
                    if AGE:
                        worth = worth / (was + 1 - place)
                    if WORTH != "mass":
                        rank = _ordered(worth)
                if WORTH != "mass":
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
