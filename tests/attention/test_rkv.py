"""R-KV: redundancy by hand, also in blocks, and where keys are nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

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


def test_no_number_is_lost_in_float32() -> None:
    k = torch.zeros(1, 1, 9, 4)
    assert redundancy(k, 0.5).sum().item() == pytest.approx(1)
    assert math.isfinite(float(redundancy(k, 0.5).max()))
