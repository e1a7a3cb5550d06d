"""One or more cases of every penalty, small enough to read, and what the oracles make of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lil import penalties
from tests.lil.oracles import compare

V = 16
PAD = 0  # no stream of these tests holds it

#: The penalty's name, then what is special; parameters that the oracle shares.
CASES: dict[str, dict[str, Any]] = {
    "lz derived": {"alpha": 0.3, "window": 9, "buffer": 3},
    "lz printed": {"alpha": 0.3, "window": 9, "buffer": 3, "formula": "printed"},
    "lz rate": {"alpha": 0.3, "window": 9, "buffer": 3, "formula": "rate"},
    "lz default": {},
    "frequency": {"strength": 0.7},
    "presence": {"strength": 0.7},
    "presence_window": {"strength": 0.7, "window": 6},
    "dry": {"sequence_breakers": [3], "longest": 50},
    "no_repeat_ngram": {"ngram_size": 3},
    "nowait": {"words": [], "tokens": [2, 5, 99]},
    "repetition": {"penalty": 1.3},
}


def build(case: str, **options: object) -> penalties.Penalty:
    return penalties.get(case.split()[0], **CASES[case], **options)


def expected(case: str, histories: list[list[int]], scores: Tensor) -> Tensor:
    """Every row's scores (B, V) as the oracle has them."""
    penalise = compare.PENALISE[case.split()[0]]
    rows = zip(scores.tolist(), histories, strict=True)
    made = [penalise(row, history, **CASES[case]) for row, history in rows]
    return torch.tensor(made, dtype=torch.float64)


def random_scores(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual.double(), wanted, atol=1e-4, rtol=1e-5)
