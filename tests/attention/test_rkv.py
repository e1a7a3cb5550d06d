"""R-KV: redundancy by hand, also in blocks, and where keys are nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention.engines import ENGINES, Engine

CPU = torch.device("cpu")


@pytest.fixture(params=["torch", "cpp"])
def engine(request: pytest.FixtureRequest) -> Engine:
    one = ENGINES[request.param]
    if (reason := one.refusal(CPU, torch.float64)) is not None:
        pytest.skip(f"engine {one.name}: expected {reason}")
    return one


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


@pytest.mark.parametrize("S", [1, 17, 70])
@pytest.mark.parametrize("block", [None, 3])
def test_redundancy_by_hand(
    engine: Engine, block: int | None, S: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block:
        monkeypatch.setattr("attention.engines.engine.BLOCK_ELEMENTS", block * 6 * S)
    k = torch.randn(2, 3, S, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if S > 11:
        k[:, :, 11] = 2 * k[:, :, 3]
    got = engine.redundancy(k, 0.5)
    for r in range(2):
        for j in range(3):
            assert np.abs(got[r, j].numpy() - by_hand(k[r, j].numpy(), 0.5)).max() < 1e-7


def test_no_number_is_lost_in_float32(engine: Engine) -> None:
    k = torch.zeros(1, 1, 9, 4)
    assert engine.redundancy(k, 0.5).sum().item() == pytest.approx(1)
    assert math.isfinite(float(engine.redundancy(k, 0.5).max()))
