"""What engines do besides reading: tokens put, moved and dropped, mass, bounds and turns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attention
from attention.core.slots import Slots
from attention.core.step import Occupancy
from attention.engines import ENGINES, QKV, Engine
from attention.testing import OneLayer
from tests.attention.oracles.decode_query import attended
from tests.attention.test_engines import (
    ALLOWED,
    DEVICE,
    HERE,
    drawn,
    require_support,
)

WIDE = {d: d if d.itemsize > 2 else torch.float32 for d in ALLOWED}


@pytest.fixture(params=HERE)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


def slots_of(data: torch.Tensor, fill: float = 0.0) -> Slots:
    """Slots that hold this, (B, H, C, ...)."""
    slots = Slots(*data.shape[:2], data.shape[3:], dtype=data.dtype, device=DEVICE, fill=fill)
    slots.fit(data.shape[2])
    slots.data[:, :, : data.shape[2]] = data
    return slots


def off(got: torch.Tensor, want: np.ndarray, dtype: torch.dtype) -> None:
    difference = np.abs(got.cpu().double().numpy() - want).max()
    assert difference <= ALLOWED[dtype] * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("far", [None, 0, 9])
@pytest.mark.parametrize(("M", "most"), [(1, 1), (3, 70), (2, 1500)])
def test_attend_with_mass(engine: Engine, dtype, sinks, far, M, most) -> None:
    require_support(engine, dtype)
    B, H, D = 3, 2, 16
    lengths = np.array([most, max(1, most // 2), 1])
    q, k, v = (drawn(dtype, B, H, n, D, seed=i) for i, n in enumerate((M, most + 3, most + 3)))
    keys, values = (drawn(dtype, B, H, 9, D, seed=i) for i in (3, 4))
    sink_logits = drawn(dtype, H * M, seed=5) if sinks else None
    before = drawn(WIDE[dtype], B, H, most + 1, seed=6)
    mass, elsewhere = before.clone(), None
    if far is not None:  # the last row reads none of them
        pages = torch.zeros(B, H, 1, dtype=torch.int64, device=DEVICE)
        counts = torch.tensor([far, far // 2, 0], device=DEVICE).view(B, 1, 1).expand(B, H, 1)
        elsewhere = engine.attend_pages(QKV(q, keys, values), pages, counts, 9, lse=True)
    out = engine.attend_with_mass(
        QKV(q, k, v, sink_logits), Occupancy(lengths, DEVICE), mass, elsewhere
    )
    assert (out.shape, out.dtype) == (q.shape, dtype)
    others = [0] * B if far is None else [far, far // 2, 0]
    for b, n in enumerate(lengths):
        for h in range(H):
            own_sinks = None if sink_logits is None else sink_logits[h * M : (h + 1) * M]
            both = (torch.cat((x[b, h], y[b, h])) for x, y in ((k, keys), (v, values)))
            read = [*range(n), *range(most + 3, most + 3 + others[b])]
            want, probs, _ = attended(q[b, h], *both, read, own_sinks)
            off(out[b, h], want, dtype)
            got = (mass[b, h, :n] - before[b, h, :n]).cpu().double().numpy()
            assert np.abs(got - probs[:, :n].sum(0)).max() <= max(ALLOWED[dtype], 1e-6) * M
            assert torch.equal(mass[b, h, n:], before[b, h, n:])


numbers = st.one_of(
    st.integers(-2, 2).map(float),
    st.sampled_from([math.inf, -math.inf]),
    st.floats(-9, 9, width=32),
)


@settings(max_examples=30, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", HERE)
def test_lowest_is_the_least_and_newest(name: str, data: st.DataObject) -> None:
    engine_here, B, H = ENGINES[name], 2, 2
    S = data.draw(st.integers(1, 40))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    each = st.lists(numbers, min_size=S, max_size=S)
    worth = torch.tensor([[data.draw(each) for _ in range(H)] for _ in range(B)], dtype=dtype)
    if data.draw(st.booleans()):
        worth = worth[:, :1].expand(-1, H, -1)
    order = [[data.draw(st.permutations(range(S + 5)))[:S] for _ in range(H)] for _ in range(B)]
    position = torch.tensor(order, dtype=torch.int32)
    stays = data.draw(st.one_of(st.none(), st.lists(st.integers(1, S + 5), min_size=2, max_size=2)))
    result = engine_here.lowest(
        worth.to(DEVICE),
        position.to(DEVICE),
        None if stays is None else torch.tensor(stays, device=DEVICE),
    )
    for b in range(B):
        for h in range(H):
            known = [
                math.inf if stays is not None and p >= stays[b] else w
                for w, p in zip(worth[b, h].tolist(), order[b][h], strict=True)
            ]
            want = min(range(S), key=lambda s: (known[s], -order[b][h][s]))
            assert result[b, h].item() == want


@settings(max_examples=30, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", HERE)
def test_keep_best_keeps_the_best_and_first_in_order(name: str, data: st.DataObject) -> None:
    engine_here, B, H = ENGINES[name], 3, 2
    S = data.draw(st.integers(1, 40))
    most = data.draw(st.integers(1, S))
    rows = data.draw(st.lists(st.integers(0, B - 1), min_size=1, max_size=B, unique=True))
    each = st.lists(numbers, min_size=S, max_size=S)
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    worth = torch.tensor([[data.draw(each) for _ in range(H)] for _ in rows], dtype=dtype)
    kept_slots = [
        slots_of(drawn(torch.float32, B, H, S, 3)),
        slots_of(torch.arange(B * H * S, dtype=torch.int32).view(B, H, S), fill=-1),
    ]
    want = [slots.data.clone() for slots in kept_slots]
    engine_here.keep_best(kept_slots, torch.tensor(rows, device=DEVICE), worth.to(DEVICE), most)
    for i, r in enumerate(rows):
        for h in range(H):
            score = worth[i, h].tolist()
            best = sorted(sorted(range(S), key=lambda s, w=score: (-w[s], s))[:most])
            for whole, slots in zip(want, kept_slots, strict=True):
                whole[r, h, :S] = torch.cat(
                    (whole[r, h, best], torch.full_like(whole[r, h, : S - most], slots.fill))
                )
    assert all(
        torch.equal(slots.data, whole) for slots, whole in zip(kept_slots, want, strict=True)
    )


def likeliest_by_hand(probs: np.ndarray, k: int, largest: bool) -> list[int]:
    """Slots of one set, from the probabilities (M, n) of its queries."""
    weight = probs.max(0) if largest else probs.sum(0)
    others = sorted(range(len(weight) - 1), key=lambda i: (-round(weight[i], 12), i))
    return sorted([*others[: k - 1], len(weight) - 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("largest", [False, True], ids=["sum", "largest"])
@pytest.mark.parametrize(("M", "S", "k"), [(1, 1, 1), (2, 70, 20), (5, 33, 1), (4, 90, 120)])
def test_likeliest(engine: Engine, dtype, sinks, largest, M, S, k) -> None:
    require_support(engine, dtype)
    B, H, D = 3, 2, 16
    q, keys = drawn(dtype, B, H, M, D), drawn(dtype, B, H, S + 3, D, seed=1)
    if S > 30:
        keys[:, :, 7:25] = keys[:, :, :1]  # equals, among which the older win
    sink_logits = drawn(dtype, H * M, seed=3) if sinks else None
    lengths = np.array([S, max(1, S // 2), 1])
    qkv = QKV(q, keys, keys, sink_logits)
    slots, counts = engine.likeliest(qkv, Occupancy(lengths, DEVICE), k, largest=largest)
    assert slots.shape == counts.shape == (B, H, min(k, S))
    for b, n in enumerate(lengths):
        for h in range(H):
            own_sinks = None if sink_logits is None else sink_logits[h * M : (h + 1) * M]
            _, probs, _ = attended(q[b, h], keys[b, h], keys[b, h], range(n), own_sinks)
            result = list(zip(slots[b, h].tolist(), counts[b, h].tolist(), strict=True))
            want = likeliest_by_hand(np.asarray(probs), min(k, n), largest)
            assert sorted(slot for slot, count in result if count) == want
            assert {count for _, count in result} <= {0, 1}
            # Nobody reads the others, but they are slots that there are, each once.
            assert len({slot for slot, _ in result}) == len(result)


@settings(max_examples=30, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", HERE)
def test_restamp_by_hand(name: str, data: st.DataObject) -> None:
    engine_here, B, H = ENGINES[name], 2, 2
    page, M = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(1, 23), min_size=B, max_size=B))
    S, how = max(lengths), data.draw(st.sampled_from(["max", "sum", "mean"]))
    alpha = data.draw(st.sampled_from([None, 0.0, 0.3]))
    # Eighths: sums are exact, and many scores are equal.
    eighths = st.lists(st.integers(0, 8), min_size=S, max_size=S)
    probs = torch.tensor([[[data.draw(eighths) for _ in range(M)] for _ in range(H)] for _ in "ab"])
    probs = probs.float() / 8
    for b, n in enumerate(lengths):
        probs[b, :, :, n:] = 0
    now = data.draw(st.lists(st.sampled_from([0, 5, 9]), min_size=B, max_size=B))
    stamps = slots_of(torch.randint(0, 10, (B, H, S), generator=torch.Generator().manual_seed(S)))
    stamps.data = stamps.data.to(torch.int32)
    before = stamps.data.clone()
    occupancy = Occupancy(np.array(lengths), DEVICE)
    times = torch.tensor(now, device=DEVICE)
    engine_here.restamp(stamps, probs.to(DEVICE), occupancy, times, page, how, alpha)
    reduce = {"max": max, "sum": sum, "mean": lambda x: sum(x) / len(x)}[how]
    for b, n in enumerate(lengths):
        for h in range(H):
            score = [
                reduce([max(probs[b, h, m, i : min(n, i + page)].tolist()) for m in range(M)])
                for i in range(0, n, page)
            ]
            best = sorted(range(len(score)), key=lambda u, s=score: (-s[u], u))
            if alpha is None:
                best = best[: max(len(score) // 2, 1)]
            else:
                best = [u for u in best if score[u] > float(np.float32(alpha))]
            for slot in range(n):
                old = before[b, h, slot].item()
                want = max(old, now[b]) if slot // page in best else old
                assert stamps.data[b, h, slot].item() == want


def test_tokens_that_leave_the_window_of_infllm_have_places_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = torch.Tensor.index_copy_

    def copied(self: Any, dim: int, index: Any, source: Any) -> Any:
        assert len(index.unique()) == len(index)
        return real(self, dim, index, source)

    monkeypatch.setattr(torch.Tensor, "index_copy_", copied)
    for prompt in range(53, 60):
        OneLayer(attention.InfLLM(budget=100)).feed(prompt)


def test_a_budget_above_a_short_prompt_is_no_obstacle_to_captures() -> None:
    layer = OneLayer(attention.Adamas(budget=128))
    layer.feed(20)
    assert layer.layer.obstacle() is None
