"""The shared arithmetic, against the plainest way to write it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.core import kernels
from attention.core.slots import Slots


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.floats(0, 1), min_size=1, max_size=40), slots=st.integers(1, 70))
def test_equal_slots_have_equal_sums(numbers: list[float], slots: int) -> None:
    for dtype in (torch.float32, torch.float64):
        column = torch.tensor(numbers, dtype=dtype)
        total = kernels.added(column[None, :, None].repeat(2, 1, slots), 1)
        assert total.shape == (2, slots)
        assert (total == total[0, 0]).all()
        assert float(total[0, 0]) == pytest.approx(sum(numbers), rel=1e-5)


def naive(q, k, v, scaling, last):
    """(B, Hq, T, D) against (B, Hkv, S, D), one query at a time."""
    B, Hq, T, _ = q.shape
    G, S = Hq // k.shape[1], k.shape[2]
    out = torch.zeros(B, T, Hq, v.shape[-1], dtype=q.dtype)
    probs = torch.zeros(B, Hq, T, S, dtype=q.dtype)
    for b in range(B):
        for h in range(Hq):
            for t in range(T):
                n = int(last[b % len(last), t]) + 1
                p = (k[b, h // G, :n] @ q[b, h, t] * scaling).softmax(0)
                probs[b, h, t, :n] = p
                out[b, t, h] = p @ v[b, h // G, :n]
    return out, probs


def problem(T: int, S: int, B: int = 2):
    torch.manual_seed(T * 100 + S)
    q = torch.randn(B, 4, T, 6, dtype=torch.float64)
    k, v = torch.randn(2, B, 2, S, 6, dtype=torch.float64)
    return q, k, v


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize(("T", "S", "rows"), [(7, 7, 1), (3, 9, 1), (5, 9, 2), (9, 4, 2)])
def test_prefill_is_attention(
    T: int, S: int, rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", block)
    monkeypatch.setattr(kernels, "MASK_ELEMENTS", block)
    q, k, v = problem(T, S)
    last = (torch.arange(S - T, S)[None] - torch.arange(rows)[:, None]).clamp(min=0)
    want, probs = naive(q, k, v, 0.3, last)
    assert (kernels.dense(q, k, v, 0.3, last, square=False) - want).abs().max() < 1e-12
    if T == S and rows == 1:
        assert (kernels.dense(q, k, v, 0.3, last, square=True) - want).abs().max() < 1e-12
    real = torch.rand(2, T) > 0.4
    band = 3
    out, mass = kernels.dense_with_mass(q, k, v, 0.3, last, real, band)
    assert (out - want).abs().max() < 1e-12
    near = (last[:, :, None] - torch.arange(S) < band).expand(2, -1, -1)
    counted = (probs * (real[..., None] & near)[:, None]).sum(2)
    assert (mass.flatten(1, 2) - counted).abs().max() < 1e-12


def test_slots_grow_by_doubling_within_limit_and_multiple() -> None:
    x = Slots(1, 1, (2,), dtype=torch.float32, device=torch.device("cpu"), fill=7.0, multiple=6)
    sizes = []
    for tokens in (1, 60, 67, 68, 140):
        x.fit(tokens)
        sizes.append(x.capacity)
    assert sizes == [66, 66, 132, 132, 264]
    assert (x.data == 7).all()
    x.data[:, :, :3] = 1.0
    x.fit(300)
    assert x.data[0, 0, :, 0].tolist() == [1.0] * 3 + [7.0] * (x.capacity - 3)
    y = Slots(1, 1, dtype=torch.float32, device=torch.device("cpu"), limit=70)
    y.fit(65)
    assert y.capacity == 65
    y.fit(66)
    assert y.capacity == 70
    z = Slots(1, 1, dtype=torch.float32, device=torch.device("cpu"), unit=16)
    z.fit(65)
    assert z.capacity == 5
