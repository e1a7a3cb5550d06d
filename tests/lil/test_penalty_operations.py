"""What a step of penalties asks of the device: how many operations, and that nothing waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from penalty_cases import computed_by
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import lil
from attention.core import devices
from lil.decoding.batch import BatchPenalties

#: What has to know values of the device before the host goes on.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "_to_copy")
CALLS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__")
B, V = 32, 1000


class Operations(TorchDispatchMode):
    """Counts operations, and those of them that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # Boolean indexing looks for what is true.
        masks = [a for a in args if isinstance(a, (list, tuple))] if name == "index" else []
        if any(isinstance(m, torch.Tensor) and m.dtype is torch.bool for a in masks for m in a):
            name = "nonzero"
        if name == "_to_copy" and "device" not in (kwargs or {}):
            name = "cast"
        self.names[name] += 1
        return func(*args, **(kwargs or {}))


class HostReads(TorchFunctionMode):
    """Counts calls that bring values to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += getattr(func, "__name__", "") in CALLS
        return func(*args, **(kwargs or {}))


@contextmanager
def counting() -> Iterator[tuple[Operations, HostReads]]:
    with HostReads() as reads, Operations() as operations:
        yield operations, reads


def counted(penalty: lil.Penalty, steps: int = 40) -> tuple[int, int]:
    """Operations and waits of one token of all rows, once everything is in place."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        SimpleNamespace(prompt_ids=(1, 2, 3), new_ids=[], dropped=[], unread=0) for _ in range(B)
    ]
    penalised = BatchPenalties([penalty])
    newest = torch.zeros(B, dtype=torch.int64)
    for _ in range(steps):
        with counting() as (operations, reads):
            penalised(rows, newest, torch.randn(B, V, generator=generator))
        newest = torch.randint(0, 9, (B,), generator=generator)
        for row, token in zip(rows, newest.tolist(), strict=True):
            row.new_ids.append(token)
    made = sum(operations.names.values()) - operations.names["randn"]
    return made, sum(operations.names[name] for name in WAITS) + reads.reads


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
def test_a_step_of_all_rows_is_a_few_operations_and_waits_for_nothing(penalty, most, monkeypatch):
    monkeypatch.setattr(devices, "answers_at_once", lambda _device: False)  # a GPU's way
    with computed_by("torch"):
        operations, waits = counted(penalty)
    assert 0 < operations <= most
    assert waits == 0


def test_waits_are_counted():
    x = torch.arange(4.0)
    for waiting in (
        lambda: x.nonzero(),
        lambda: x[x > 1],
        lambda: bool((x > 1).any()),
        lambda: x[0].item(),
        lambda: x.tolist(),
        lambda: x.cpu(),
    ):
        with counting() as (operations, reads):
            waiting()
        assert sum(operations.names[name] for name in WAITS) + reads.reads > 0
