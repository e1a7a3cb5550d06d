"""What is chosen on a GPU, in Triton's interpreter, against loops in float64.

What must not be read is NaN, rows have lengths of their own, and one place is not live. Every
kernel gives the same bits whatever the order of its programs.
"""

from __future__ import annotations

import importlib.util
import math
import operator
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.attention.interpreting import ORDERS, interpreting

INSIDE = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the extra triton"
)
# Triton decides when it is imported: a process interprets all kernels or none.
interpreted = pytest.mark.skipif(not INSIDE, reason="run by `test_triton`")
NAN, DTYPES = float("nan"), (torch.float32, torch.float16, torch.bfloat16)
if importlib.util.find_spec("triton") is not None:
    from attention.engines import gpu, gpu_choice


def drawn(seed: int) -> Callable[..., Tensor]:
    random = torch.Generator().manual_seed(seed)
    return lambda *shape, dtype=torch.float32: torch.randn(*shape, generator=random).to(dtype)


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def in_every_order(run: Callable[..., Sequence[Tensor]], *state: Tensor) -> list[Tensor]:
    """What `run` gives and leaves of copies of a state, the same bits in every order."""
    results = []
    for order in (None, *ORDERS.values()):
        copies = [x.clone() for x in state]
        with interpreting(order):
            results.append([*run(*copies), *copies])
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
    return results[0]


def same(x: Tensor, y: Tensor) -> bool:
    """Bit by bit, NaN included."""
    return (
        x.numpy().tobytes() == y.numpy().tobytes()
        if x.dtype != torch.bfloat16
        else same(x.float(), y.float())
    )


def close(x: Tensor | float, y: Any) -> None:
    expected = torch.as_tensor(y, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(x).double(), expected, rtol=1e-5, atol=1e-5)


def scale(D: int, dtype: torch.dtype) -> float:
    """A power of two for bfloat16, which the interpreter cuts off where a GPU rounds."""
    return 0.125 if dtype == torch.bfloat16 else D**-0.5


def scaled(x: Tensor, scaling: float) -> Tensor:
    """As the plain engine scales, in float64."""
    return (x * scaling).double()


# Pages by their bounds


@interpreted
@pytest.mark.parametrize("G", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("D", "page", "gqa"), [(64, 5, "sum"), (128, 16, "max"), (64, 1, "query_head")]
)
def test_pages_are_scored_and_the_last_one_is_raised(G: int, D: int, page: int, gqa: str) -> None:
    dtype, Hkv, P, draw = DTYPES[(G + D) % 3], 2, 20, drawn(G)
    C = P * page
    lengths = [0, 1, page - 1, page, page + 1, C - 1, 3]
    R, dead = len(lengths), 6
    q, k, v = (draw(R, H, 1, D, dtype=dtype) for H in (Hkv * G, Hkv, Hkv))
    for x in (q, k, v):
        x[dead] = NAN
    history = draw(R, Hkv, C, D, dtype=dtype)
    known, bounds = torch.full((2, R + 1, Hkv, C, D), NAN, dtype=dtype), None
    bounds = torch.full((R + 1, Hkv, P, 2 * D), NAN, dtype=dtype)
    for r, length in enumerate(lengths):
        for p in range(-(-length // page)):
            part = history[r, :, p * page : min((p + 1) * page, length)]
            bounds[r, :, p] = torch.cat((part.amax(1), (-part).amax(1)), -1)
    seen, live, scaling = ints(*lengths), ints(*[1] * 6, 0), scale(D, dtype)

    def run(keys: Tensor, values: Tensor, known: Tensor) -> list[Tensor]:
        scores = gpu_choice.estimate_pages(
            q, k, v, scaling, keys, values, known, seen, live, page, gqa
        )
        for r, length in enumerate(lengths):  # whatever was in memory
            scores[r, :, 0 if r == dead else length // page :] = 0
        return [scores]

    scores, keys, values, now = in_every_order(run, known[0], known[1], bounds)
    sets = Hkv * G if gqa == "query_head" else Hkv
    assert scores.shape == (R, sets, P)
    for r, length in enumerate(lengths[:dead]):
        last = length // page
        for x, before, new in ((keys, known[0], k), (values, known[1], v)):
            expected = before[r].clone()
            expected[:, length] = new[r, :, 0]
            assert same(x[r], expected)
        part = torch.cat((history[r, :, last * page : length], k[r]), 1)
        expected = bounds[r].clone()
        expected[:, last] = torch.cat((part.amax(1), (-part).amax(1)), -1)
        assert same(now[r], expected)
        for s, p in product(range(sets), range(last)):
            part = history[r, s * Hkv // sets, p * page : (p + 1) * page].double()
            high, low = part.amax(0), part.amin(0)
            each = [
                torch.maximum(x * high, x * low).sum()
                for x in scaled(q[r, s * Hkv * G // sets : (s + 1) * Hkv * G // sets, 0], scaling)
            ]
            close(scores[r, s, p], max(each) if gqa == "max" else sum(each))
    for x, before in ((keys, known[0]), (values, known[1]), (now, bounds)):
        assert same(x[dead:], before[dead:])


# Blocks by their representatives


def turned(x: Tensor, start: int, end: int, cos: Tensor, sin: Tensor) -> Tensor:
    """(..., D) as the model would have turned it at another position, in its dtype."""
    n = cos.shape[1]
    first, second = x[..., : n // 2].double(), x[..., n // 2 : n].double()
    pairs = torch.complex(first, second) / torch.complex(cos[start], sin[start])[: n // 2]
    pairs = pairs * torch.complex(cos[end], sin[end])[: n // 2]
    return torch.cat((pairs.real, pairs.imag, x[..., n:].double()), -1)


@interpreted
@pytest.mark.parametrize("G", [1, 3, 8])
@pytest.mark.parametrize(
    ("D", "n_init", "block", "sets"), [(64, 6, 4, 1), (128, 8, 8, 2), (64, 0, 5, 1)]
)
def test_tokens_leave_the_window_and_blocks_are_scored(
    G: int, D: int, n_init: int, block: int, sets: int
) -> None:
    dtype, Hkv, window, blocks, top, draw = DTYPES[(G + D) % 3], 2, 7, 20, 3, drawn(G)
    spare = -n_init % block
    C, TURN = n_init + spare + blocks * block, D if D == 64 else 96
    full = window + n_init + block  # the length at which a block is complete
    lengths = [0, 1, window - 1, window, window + 1, window + n_init, full - 1, full, full + 1]
    lengths += [C - 1 - spare, C - 1 - spare]
    R, dead = len(lengths), len(lengths) - 1
    angles = torch.arange(C + window)[:, None] * 10.0 ** (-torch.arange(TURN // 2) / 9)
    cos, sin = (torch.cat((x, x), 1) * 1.25 for x in (angles.cos(), angles.sin()))
    q, k, v = (draw(R, H, 1, D, dtype=dtype) for H in (Hkv * G, Hkv, Hkv))
    for x in (q, k, v):
        x[dead] = NAN
    state = [
        *(torch.full((R + 1, Hkv, window, D), NAN, dtype=dtype) for _ in range(2)),
        torch.full((R + 1, Hkv, window), NAN),
        *(torch.full((R + 1, Hkv, C, D), NAN, dtype=dtype) for _ in range(2)),
        torch.full((R + 1, Hkv, block), NAN),
        torch.full((R + 1, sets, blocks, Hkv // sets * D), NAN),
    ]
    for r, seen in enumerate(lengths[:dead]):
        left = max(seen - window, 0)
        for x in state[:2]:
            x[r, :, : min(seen, window)] = draw(Hkv, min(seen, window), D, dtype=dtype)
        state[2][r, :, : min(seen, window)] = draw(Hkv, min(seen, window)).abs()
        slots = [p if p < n_init else p + spare for p in range(left)]
        for x in state[3:5]:
            x[r, :, slots] = draw(Hkv, left, D, dtype=dtype)
        rest = (left - n_init) % block if left > n_init else 0
        # Equal masses: among them the first ones count.
        state[5][r, :, :rest] = draw(Hkv, rest).abs().round()
        state[2][r] = state[2][r].round() if r % 2 else state[2][r]
        state[6][r, :, : max(left - n_init, 0) // block] = draw(
            sets, max(left - n_init, 0) // block, state[6].shape[3]
        )
    live, scaling = ints(*[1] * dead, 0), scale(D, dtype)

    def competing(seen: int) -> int:
        return max(-(-max(seen + 1 - window - n_init, 0) // block) - 1, 0)

    def run(*parts: Tensor) -> list[Tensor]:
        scores = gpu_choice.estimate_blocks(
            q, k, v, scaling, parts[:3], parts[3:], (cos, sin), ints(*lengths), live, n_init, top
        )
        for r, seen in enumerate(lengths):
            scores[r, :, 0 if r == dead else competing(seen) :] = 0
        return [scores]

    scores, *after = in_every_order(run, *state)
    for r, seen in enumerate(lengths[:dead]):
        expected = [x[r].clone() for x in state]
        gone, place = seen - window, seen % window
        if gone >= 0:
            slot = gone if gone < n_init else gone + spare
            key = turned(state[0][r, :, place], gone, 0, cos, sin)
            rounding = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
            torch.testing.assert_close(after[3][r, :, slot].double(), key, rtol=rounding, atol=1e-5)
            expected[3][:, slot] = after[3][r, :, slot]
            expected[4][:, slot] = state[1][r, :, place]
            if gone >= n_init:
                i = (gone - n_init) % block
                expected[5][:, i] = state[2][r, :, place]
                if i == block - 1:
                    page = expected[3][:, slot - i : slot + 1].double()
                    best = [sorted(range(block), key=lambda j: -m[j])[:top] for m in expected[5]]
                    mean = torch.stack([x[b].mean(0) for x, b in zip(page, best, strict=True)])
                    mean = mean.view(sets, -1)
                    close(after[6][r, :, (gone - n_init) // block], mean)
                    expected[6][:, (gone - n_init) // block] = after[6][
                        r, :, (gone - n_init) // block
                    ]
        expected[0][:, place], expected[1][:, place] = k[r, :, 0], v[r, :, 0]
        expected[2][:, place] = 0
        for x, y in zip(after, expected, strict=True):
            assert same(x[r], y)
        if competing(seen):
            near = turned((q[r, :, 0] * scaling), seen, window - 1, cos, sin).to(dtype).double()
            query = near.view(sets, Hkv // sets, G, D).sum(2).reshape(sets, 1, -1)
            means = state[6][r, :, : competing(seen)].double()
            tolerance = 1e-5 if dtype == torch.float32 else 3e-2  # a rounding of the last bit
            expected_scores = (query * means).sum(-1)
            torch.testing.assert_close(
                scores[r, :, : competing(seen)].double(), expected_scores, rtol=0, atol=tolerance
            )
    for x, before in zip(after, state, strict=True):
        assert same(x[dead:], before[dead:])


# The best of them


def ranked(numbers: Sequence[float], k: int, younger: bool = False) -> list[int]:
    """Places of the k largest, -0.0 below 0.0, among equals the first or the last, ascending."""

    def order(i: int) -> tuple[float, float, int]:
        return -numbers[i], -math.copysign(1, numbers[i]), -i if younger else i

    return sorted(sorted(range(len(numbers)), key=order)[:k])


def tied(draw: Callable[..., Tensor], *shape: int) -> Tensor:
    """Few different numbers, both zeros among them; the last set has none above."""
    x = draw(*shape)
    # Of the bits of 0.75 the last pair that a choice looks at is 01, of the zeros 10 and 11.
    x = torch.where(x.abs() > 1.8, 1e20 * x, (2 * x).round().clamp(-1, 1) * 0.75)
    x[..., -1, :].clamp_(max=0)
    return x


@interpreted
@pytest.mark.parametrize(("at_once", "k"), [(64, 2), (16, 1), (16, 7)])
@pytest.mark.parametrize(("page", "n_init", "window"), [(1, 0, 0), (5, 0, 0), (4, 6, 9), (4, 8, 3)])
def test_the_best_pages_and_the_last_one(
    at_once: int, k: int, page: int, n_init: int, window: int
) -> None:
    P, sets, heads, draw = 50, 2, 4, drawn(k)
    spare = -n_init % page
    first = (n_init + spare) // page
    begun = window + n_init
    lengths = [0, 1, begun, begun + page - 1, begun + page, begun + page + 1, begun + k * page]
    lengths += [begun + k * page + 1, begun + (k + 1) * page, begun + 17 * page, window - 1, 9]
    lengths = [*(n for n in lengths if n >= 0), begun + (P - 1) * page - 1, 40]
    R = len(lengths)
    scores = torch.full((R, sets, P), NAN)
    for r, seen in enumerate(lengths):
        slots = max(seen + 1 - window, 0)
        pages = -(-(slots + (spare if slots > n_init else 0)) // page)
        scores[r, :, : max(pages - 1 - first, 0)] = tied(draw, sets, max(pages - 1 - first, 0))
    live = ints(*[1] * (R - 1), 0)

    def run() -> Sequence[Tensor]:
        options = {"page": page, "n_init": n_init, "window": window, "heads": heads}
        with mock.patch.object(gpu_choice, "_AT_ONCE", at_once):
            table, read = gpu_choice.select(scores, ints(*lengths), live, k, **options)
        table[-1], read[-1] = 0, 0
        for r, h in product(range(R - 1), range(heads)):
            table[r, h, -(-int(read[r, h]) // page) :] = 0
        return table, read

    table, read = in_every_order(run)
    assert table.shape == (R, heads, first + k + 1)
    for r, h in product(range(R - 1), range(heads)):
        slots = max(lengths[r] + 1 - window, 0)
        slots += spare if slots > n_init else 0
        pages = -(-slots // page)
        competing = scores[r, h // 2, : max(pages - 1 - first, 0)].tolist()
        expected = [*range(min(first, pages - 1)), *(first + i for i in ranked(competing, k))]
        expected += [pages - 1] * (pages > 0)
        assert table[r, h, : len(expected)].tolist() == expected, (r, h)
        rest = slots - (pages - 1) * page if pages else page
        assert read[r, h] == (len(expected) - 1) * page + rest


class Looks:
    """Rows whose queries have looked at their slots; many keys are equal, and so are their logits.

    `probs` are loops in float64, (R, H, M, C).
    """

    def __init__(self, lengths: list[int], M: int, D: int = 16, H: int = 2, C: int = 40) -> None:
        draw, R = drawn(M), len(lengths)
        self.sinks, keys = draw(H * M), torch.full((R, H, C, D), NAN)
        self.q, different = draw(R, H * M, 1, D), draw(9, D)
        self.probs = torch.zeros(R, H, M, C, dtype=torch.float64)
        for (r, n), h in product(enumerate(lengths), range(H)):
            keys[r, h, : n + 1] = different[torch.arange(n + 1) ** 2 % (7 + h)]
            query = self.q[r, h * M : (h + 1) * M, 0].double()
            logits = query @ keys[r, h, : n + 1].T.double(), self.sinks.view(H, M, 1)[h].double()
            self.probs[r, h, :, : n + 1] = torch.cat(logits, 1).softmax(1)[:, :-1]
        self.new = torch.stack([keys[r, :, n : n + 1] for r, n in enumerate(lengths)])
        self.keys, self.lengths, self.capacity = keys, ints(*lengths), C
        self.counts = gpu.DeviceCounts(R, C, torch.device("cpu"))
        self.counts.live.fill_(1)

    def splits(self) -> gpu.Splits:
        limit = self.capacity
        store = gpu.Store(0, self.keys, self.keys, self.lengths, limit, sink_logits=self.sinks)
        return gpu.attend_splits(self.counts, store, self.q, self.new, self.new, 1.0, logits=True)


@interpreted
@pytest.mark.parametrize(("M", "largest"), [(1, False), (6, False), (8, True)])
def test_the_best_slots_by_probability(M: int, largest: bool) -> None:
    lengths, k = [0, 1, 6, 7, 39], 6
    rows = Looks(lengths, M)

    def run() -> Sequence[Tensor]:
        with mock.patch.object(gpu_choice, "_AT_ONCE", 16):
            table, read = gpu_choice.select(
                rows.splits(), rows.lengths, rows.counts.live, k, largest=largest
            )
        for r, seen in enumerate(lengths):
            table[r, :, seen + 1 :] = 0
        return table, read

    table, read = in_every_order(run)
    for (r, seen), h in product(enumerate(lengths), range(2)):
        probs = rows.probs[r, h, :, :seen]
        worth = probs.amax(0) if largest else probs.sum(0)
        expected = [*ranked(worth.round(decimals=12).tolist(), k), seen]
        assert table[r, h, : len(expected)].tolist() == expected
        assert read[r, h] == len(expected)


@interpreted
@pytest.mark.parametrize(("gqa", "alpha"), [("sum", None), ("mean", 0.2), ("max", None)])
@pytest.mark.parametrize("G", [1, 2, 7])
def test_pages_that_are_needed_are_stamped(gqa: str, alpha: float | None, G: int) -> None:
    page, draw, lengths = 5, drawn(G), [0, 1, 4, 5, 10, 39, 20]
    rows, seen = Looks(lengths, G), ints(0, 1, 104, 105, 10, 339, 20)
    stamps = torch.full((8, 2, 40), 7000, dtype=torch.int32)
    for r, length in enumerate(lengths):
        stamps[r, :, :length] = (draw(2, length).abs() * 9).to(torch.int32) + seen[r] - 9

    def run(state: Tensor) -> Sequence[Tensor]:
        splits = rows.splits()
        live = ints(1, 1, 1, 1, 1, 1, 0)
        gpu_choice.restamp(splits, seen, live, state, page, gqa, alpha)
        return ()

    (after,) = in_every_order(run, stamps)
    assert same(after[6:], stamps[6:])
    for r, h in product(range(6), range(2)):
        slots = lengths[r] + 1
        each = [x.amax(1) for x in rows.probs[r, h, :, :slots].split(page, 1)]
        score = [float({"sum": x.sum, "mean": x.mean, "max": x.amax}[gqa]()) for x in each]
        best = ranked(score, max(len(each) // 2, 1))
        if alpha is not None:
            best = [i for i, x in enumerate(score) if x > alpha]
        expected = stamps[r, h].clone()
        expected[slots - 1] = seen[r] + 1
        for p in best:
            expected[p * page : min((p + 1) * page, slots)].clamp_(min=int(seen[r]) + 1)
        assert same(after[r, h], expected), (r, h)


# Prompts


@interpreted
@pytest.mark.parametrize(
    ("dtype", "G", "D", "T", "how"),
    [
        (torch.float32, 1, 64, 17, "shared"),
        (torch.bfloat16, 3, 128, 33, "band"),
        (torch.float16, 8, 64, 16, "sinks"),
    ],
)
def test_slots_get_the_mass_of_all_queries(
    dtype: torch.dtype, G: int, D: int, T: int, how: str
) -> None:
    H, draw = 2 if G < 8 else 1, drawn(G)
    new, past = [T, 1, T - 1, 15, 0, min(17, T)], [0, 0, 3, 20, 0, 1]
    lengths = [n + p for n, p in zip(new, past, strict=True)]
    B, S = len(new), max(lengths) + 2
    q, k = draw(B, T, H * G, D, dtype=dtype).transpose(1, 2), draw(B, H, S, D, dtype=dtype)
    weights = draw(1 if how == "shared" else B, T).abs()
    for b in range(B):
        k[b, :, lengths[b] :] = NAN
        if how != "shared":
            q[b, :, : T - new[b]], weights[b, : T - new[b]] = NAN, 0
    band, sinks = 9 if how == "band" else None, draw(H * G) if how == "sinks" else None

    def run() -> Sequence[Tensor]:
        return gpu_choice.column_mass(q, k, D**-0.5, ints(*lengths), weights, band, sinks)

    mass, lse = in_every_order(run)
    expected = torch.zeros(B, H, G, S, dtype=torch.float64)
    for b, head in product(range(B), range(H * G)):
        for t in range(max(T - (T if how == "shared" else new[b]), T - lengths[b]), T):
            own = lengths[b] - T + t
            logits = k[b, head // G, : own + 1].double() @ q[b, head, t].double() * D**-0.5
            every = logits if sinks is None else torch.cat((logits, sinks[head : head + 1]))
            total, low = every.double().logsumexp(0), max(0, own + 1 - (band or S))
            close(lse[b, head, t], total)
            gain = torch.exp(logits - total)[low:] * weights[b % len(weights), t]
            expected[b, head // G, head % G, low : own + 1] += gain
    close(mass, expected)


# All of it


def launched(dtype: torch.dtype, G: int, D: int) -> None:
    """Every kernel as it is for rows of 32,768 tokens, with pages of 16."""
    R, H, C, page = 8, 2, 32768, 16

    def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rows, q, k = (some(R, dtype=torch.int32), *(some(R, n, 1, D, dtype=dtype) for n in (H * G, H)))
    keys, near, angles = some(R, H, C, D, dtype=dtype), some(R, H, 512, D, dtype=dtype), some(C, D)
    bounds, means = some(R, H, C // page, 2 * D, dtype=dtype), some(R, 1, C // 32, H * D)
    for gqa in ("sum", "max"):
        gpu_choice.estimate_pages(q, k, k, 1.0, keys, keys, bounds, rows, rows, page, gqa)
    parts = (near, near, some(R, H, 512)), (keys, keys, some(R, H, 32), means)
    gpu_choice.estimate_blocks(q, k, k, 1.0, *parts, (angles, angles), rows, rows, 32, 4)
    for pages in (512, 65536):
        table, read = gpu_choice.select(some(R, H, pages), rows, rows, 63, page=page)
    prompt = some(R, H * G, 4096, D, dtype=dtype), some(R, H, 4096, D, dtype=dtype)
    gpu_choice.column_mass(*prompt, 1.0, rows, some(1, 4096), 100, prompt[0][0, :, 0, 0])

    counts, place = gpu.DeviceCounts(R, C, torch.device("meta")), some(R, H, C, dtype=torch.int32)
    following, head = some(R, H, 1, dtype=torch.int64), some(H, dtype=torch.int64)
    turn, table = (angles, angles), gpu.Pages(keys, keys, table, read, page)
    blocks = replace(table, first=5, turn=turn)
    moves = {
        worth: gpu.Eviction(worth, following, rows, rows, *more)
        for worth, *more in (("score", some(R, H, C, G)), ("last", None, None, True),
                             ("number", None, head), ("mass", some(R, H, 512)))
    }  # fmt: skip
    for where, pages in (
        ({"position": place, "queries": some(R, H * G, 32, D, dtype=dtype)}, None),
        ({"place": "ring", "first": rows, "turn": turn}, None),
        *(({"place": "next", "position": place, "eviction": moves[x]}, None)
          for x in ("score", "last", "number")),
        ({"place": "stored", "eviction": moves["mass"]}, blocks),
        ({"place": "table", "sink_logits": q[0, :, 0, 0]}, table),
        ({"place": "paged"}, table),
    ):  # fmt: skip
        own = near if where.get("place") == "stored" else keys
        store = gpu.Store(0, own, own, rows, own.shape[2], **where)
        gpu.attend(counts, store, q, k, k, 1.0, pages)
    splits = gpu.attend_splits(counts, gpu.Store(0, keys, keys, rows, C), q, k, k, 1.0, None, True)
    gpu_choice.select(splits, rows, rows, 1023)
    near = gpu.Store(0, near, near, rows, 512)
    splits = gpu.attend_splits(counts, near, q, k, k, 1.0, None, True)
    gpu_choice.restamp(splits, rows, rows, some(R, H, 512, dtype=torch.int32), page, "max", None)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("dtype", "G", "D"),
    [
        (torch.bfloat16, 6, 128),
        (torch.bfloat16, 8, 128),
        (torch.float16, 4, 64),
        (torch.float32, 8, 128),
    ],
)
def test_the_kernels_compile_for_gpus(
    capability: int, dtype: torch.dtype, G: int, D: int,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """At most 168 registers, 72 KB of shared memory and no stack; in float32 76 KB and 8 bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = {
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.float32: "fp32",
        torch.int32: "i32",
        torch.int64: "i64",
    }
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

    def compile_one(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:  # noqa: ARG001
        options = {n: constants.pop(n) for n in ("num_warps", "num_stages") if n in constants}
        types = [
            "*" + names[x.dtype] if isinstance(x, Tensor) else {int: "i32", float: "fp32"}[type(x)]
            for x in (args[0] if x is None else x for x in args)
        ]
        signature = dict(
            zip(kernel.arg_names, [*types, *["constexpr"] * len(constants)], strict=True)
        )
        aligned = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(types) if t[0] == "*"}
        source = ASTSource(kernel, signature, constants, aligned)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        (tmp_path / "cubin").write_bytes(made.asm["cubin"])
        command = [str(tool), "--dump-resource-usage", str(tmp_path / "cubin")]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        registers, stack = (int(re.findall(rf"{x}:(\d+)", usage)[0]) for x in ("REG", "STACK"))
        used = registers, stack, made.metadata.shared
        # Float32 is not multiplied in tensor cores: its tiles are rearranged, and take registers.
        limits = (168, 8, 76 << 10) if dtype == torch.float32 else (168, 0, 72 << 10)
        assert all(map(operator.le, used, limits)), (kernel.fn.__name__, constants, used)

    monkeypatch.setattr(gpu, "launch", compile_one)
    monkeypatch.setattr(gpu, "processors", lambda device: 132)  # noqa: ARG005
    launched(dtype, G, D)
