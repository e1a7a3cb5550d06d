"""How many operations a step of penalties asks of the device; `test_waits.py` is of waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from penalty_cases import computed_by
from torch.utils._python_dispatch import TorchDispatchMode

import lil
from attention.core import devices
from lil.decoding.batch import BatchPenalties

B, V = 32, 1000


class Operations(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def counted(penalty: lil.Penalty, steps: int = 40) -> int:
    """Operations of one token of all rows, once everything is in place."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        SimpleNamespace(prompt_ids=(1, 2, 3), new_ids=[], dropped=[], unread=0) for _ in range(B)
    ]
    penalised = BatchPenalties([penalty])
    newest = torch.zeros(B, dtype=torch.int64)
    for _ in range(steps):
        scores = torch.randn(B, V, generator=generator)
        with Operations() as operations:
            penalised(rows, newest, scores)
        newest = torch.randint(0, 9, (B,), generator=generator)
        for row, token in zip(rows, newest.tolist(), strict=True):
            row.new_ids.append(token)
    return operations.count


@pytest.mark.parametrize(
    ("penalty", "most"),
    [
        (lil.LZPenalty(alpha=1.0), 80),
        (lil.LZPenalty(alpha=1.0, formula="printed"), 80),
        (lil.LZPenalty(alpha=1.0, formula="rate"), 80),
        (lil.penalties.PresenceWindowPenalty(), 30),
        (lil.penalties.DRYPenalty(), 50),
        (lil.penalties.FrequencyPenalty(), 20),
        (lil.penalties.PresencePenalty(), 20),
        (lil.penalties.NoRepeatNGramPenalty(ngram_size=3), 50),
        (lil.penalties.RepetitionPenalty(), 30),
    ],
    ids=lambda x: getattr(x, "formula", None) or getattr(x, "name", None),
)
def test_a_step_of_all_rows_is_a_few_operations(penalty, most, monkeypatch):
    monkeypatch.setattr(devices, "is_synchronous", lambda _device: False)  # a GPU's way
    with computed_by("torch"):
        assert 0 < counted(penalty) <= most
