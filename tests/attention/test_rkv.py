"""R-KV: attention, redundancy, and when rows are compressed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from driving import Bare, follow, model, prefill, step, tokens

import attention
from attention.layers.compressing import interval
from attention.methods.rkv import redundancy


def by_hand(k: np.ndarray, threshold: float) -> np.ndarray:
    """Redundancy of keys (S, D) by loops."""
    S = len(k)
    cosine = [[float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) for b in k] for a in k]
    mean = np.zeros(S)
    for j in range(S):
        row = [0.0 if i == j else cosine[j][i] for i in range(S)]
        similar = [i for i in range(S) if row[i] > threshold]
        if similar:
            row[similar[-1]] = 0.0
        mean += np.array(row) / S
    return np.exp(mean) / np.exp(mean).sum()


@pytest.mark.parametrize("block", [None, 3])
def test_redundancy_by_hand(block: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if block:
        monkeypatch.setattr("attention.methods.rkv.BLOCK_ELEMENTS", block * 6 * 17)
    k = torch.randn(2, 3, 17, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    k[:, :, 11] = 2 * k[:, :, 3]
    got = redundancy(k, 0.5)
    for r in range(2):
        for j in range(3):
            assert np.abs(got[r, j].numpy() - by_hand(k[r, j].numpy(), 0.5)).max() < 1e-7


@pytest.mark.parametrize("gqa", ["max", "mean"])
def test_a_compression_keeps_the_best(gqa: str) -> None:
    backend = attention.RKV(budget=20, window=4, mix=0.6, kernel=3, threshold=0.4, gqa=gqa)
    bare = Bare(backend)
    bare.feed(19)
    for _ in range(30):
        before = bare.kept()
        bare.feed()
        for j in range(2):
            held = [*before[j], bare.n - 1]
            assert bare.read()[j] == held
            if len(held) == 20:
                assert bare.kept()[j] == best(bare, backend, j, held)
            else:
                assert bare.kept()[j] == held


def best(bare: Bare, backend: attention.RKV, j: int, held: list[int]) -> list[int]:
    """What stays of these positions, by loops."""
    w, keys = backend.window, bare.k[0, j, held]
    candidates = held[:-w]
    logits = torch.einsum("gwd,sd->gws", bare.q[0, 2 * j : 2 * j + 2, -w:], keys[:-w])
    one = logits.amax(0) if backend.gqa == "max" else logits.mean(0)
    mean, half = one.softmax(-1).mean(0), backend.kernel // 2
    pooled = [float(mean[max(i - half, 0) : i + half + 1].max()) for i in range(len(candidates))]
    rest = by_hand(keys.numpy(), backend.threshold)
    score = [backend.mix * p - (1 - backend.mix) * r for p, r in zip(pooled, rest, strict=False)]
    order = sorted(range(len(candidates)), key=lambda i: (-score[i], i))
    most = backend.budget - interval(backend.budget) - w
    return sorted(candidates[i] for i in order[:most]) + held[-w:]


def test_a_key_that_is_there_twice_goes_first() -> None:
    """All copies are redundant, but the newest one is spared once more than the others."""
    bare = Bare(attention.RKV(budget=20, window=4, mix=0.0))
    k = torch.eye(6, dtype=torch.float64).repeat(4, 1)[:19]  # 6 directions, three times and more
    k[5::6] = torch.randn(3, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    bare.feed(19, k.expand(1, 2, -1, -1))
    bare.feed()
    for kept in bare.kept():
        assert set(range(16, 20)) <= set(kept)
        assert len(kept) == 15
        # No direction is lost altogether.
        assert {p % 6 for p in kept if p < 19 and p % 6 != 5} == set(range(5))


@pytest.mark.parametrize("name", ["rkv", "snapkv"])
@pytest.mark.parametrize("budget", [16, 23, 64])
def test_rows_are_cut_each_interval_and_alone(name: str, budget: int) -> None:
    backend, gap = attention.get(name, budget=budget), min(128, budget // 4)
    m, lengths = model(), (budget + 5, 3, budget - 2)
    with backend.on(m) as cache:
        prefill(m, cache, [tokens(n, seed=i) for i, n in enumerate(lengths)])
        held = [n if n < budget else budget - gap for n in lengths]
        for column in tokens(3, 2 * gap + 5).T:
            assert cache.row_stats().kept_max.tolist() == held
            step(m, cache, column)
            assert cache.row_stats().read_max.tolist() == [n + 1 for n in held]
            held = [n + 1 if n + 1 < budget else budget - gap for n in held]
            for layer in range(2):
                for r, kept in enumerate(cache.kept_positions(layer)):
                    assert kept.shape[1] == held[r]
                    newest = int(cache.seen[r])
                    window = min(backend.params()["window"], newest)
                    for head in kept.tolist():
                        assert head[-window:] == list(range(newest - window, newest))
                    assert cache.read_positions(layer)[r].shape[1] == cache.row_stats().read_max[r]


def test_the_interval_of_the_specification() -> None:
    assert [interval(b) for b in (4, 64, 512, 1024)] == [1, 16, 128, 128]


@pytest.mark.parametrize("name", ["rkv", "snapkv"])
def test_a_held_row_is_cut_after_each_chunk_and_the_queries_reach_back(name: str) -> None:
    """Chunks shorter than the window: its queries come from several forwards."""
    m, text = model(), tokens(24)
    with attention.get(name, budget=24, window=8).on(m) as cache:
        whole = follow(m, cache.new(), [text], tokens(1, 20, seed=1))
        for chunk in (1, 3, 5, 23):
            other = cache.new()
            got = follow(m, other, [text], tokens(1, 20, seed=1), chunk)
            assert (got - whole).abs().max() < 1e-9
        prefill(m, cache, [tokens(90)], 30)
        assert cache.kept_positions(1)[0].shape == (2, 18)
        assert cache.row_stats().kept_max.tolist() == [18]


def test_no_number_is_lost_in_float32() -> None:
    k = torch.zeros(1, 1, 9, 4)
    assert redundancy(k, 0.5).sum().item() == pytest.approx(1)
    assert math.isfinite(float(redundancy(k, 0.5).max()))


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 10},
        {"budget": 16, "window": 12},
        {"budget": 16, "window": 0},
        {"budget": 16, "mix": 1.1},
        {"budget": 16, "threshold": -0.1},
        {"budget": 16, "kernel": 4},
        {"budget": 16, "gqa": "sum"},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    attention.RKV(budget=11)
    with pytest.raises(attention.InvalidValue):
        attention.RKV(**arguments)
