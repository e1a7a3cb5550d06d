"""One or more cases of every penalty, small enough to read, and what the oracles make of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from lil import penalties
from lil.penalties import lz
from lil.penalties._lz_cpp import CppLZ, built
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
    "repetition": {"penalty": 1.3},
}

#: What computes the LZ penalty on CPUs.
ENGINES = ("torch", "cpp")


@contextmanager
def computed_by(engine: str) -> Iterator[None]:
    """The LZ penalty computed by torch, or by what is named; a test without it is skipped."""
    if engine == "cpp" and not built():
        pytest.skip("no compiler was there when the package was installed")
    kind = {"torch": None, "cpp": CppLZ}[engine]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lz, "engine_for", lambda _: kind)
        yield


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
