"""What a decode step costs beside reading keys: operations of torch and of the C++ engine.

Small models spend a step on the number of operations rather than on their sizes, and a number is
the same however busy the machine is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attention
from attention.engines import ENGINES, cpp
from attention.patching.cache import AttentionCache
from attention.testing.driving import prefill, step, text, tiny_model

LAYERS, STEPS, BUDGET = 4, 16, 32
#: By method: parameters, operations of torch and of the engine in a layer and step, at most.
MOST: dict[str, tuple[dict[str, Any], float, float]] = {
    "full": ({}, 6, 2),
    "sink": ({"budget": BUDGET}, 11, 3),
    "window": ({"budget": BUDGET}, 6, 2),
    "h2o": ({"budget": BUDGET}, 11, 3),
    "tova": ({"budget": BUDGET}, 20, 3),
    "random": ({"budget": BUDGET}, 14, 3),
    "quest": ({"budget": BUDGET, "page": 4, "dense_layers": 0}, 19, 4),
    "infllm": ({"budget": BUDGET}, 24, 9),
    "oracle": ({"budget": BUDGET}, 11, 3),
    "raas": ({"budget": BUDGET, "page": 4, "keep_prompt": False}, 20, 6),
    "rkv": ({"budget": BUDGET}, 14, 4),
    "snapkv": ({"budget": BUDGET}, 14, 4),
}


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what layers do in here."""
    found: Counter[str] = Counter()
    library, attend = cpp._library(), AttentionCache.attend
    assert library is not None

    def counting(operation: Any) -> Any:
        def called(*args: Any) -> Any:
            found["engine"] += 1
            return operation(*args)

        return called

    def attending(self: AttentionCache, *args: Any) -> Any:
        with _Operations() as mode:
            out = attend(self, *args)
        found["torch"] += mode.count
        return out

    every = {
        dtype: cpp.Operations._make(map(counting, operations))
        for dtype, operations in library.items()
    }
    with (
        mock.patch.object(cpp, "_library", return_value=every),
        mock.patch.object(AttentionCache, "attend", attending),
    ):
        yield found


@pytest.mark.parametrize("name", MOST)
def test_no_method_does_more_operations(name: str) -> None:
    if (reason := ENGINES["cpp"].refusal(torch.device("cpu"), torch.float32)) is not None:
        pytest.skip(f"engine cpp: expected {reason}")
    params, most, most_of_engine = MOST[name]
    model, given = tiny_model(LAYERS, dtype=torch.float32), text(3, 2 * STEPS)
    with torch.no_grad(), attention.get(name, **params).on(model, engine="cpp") as cache:
        prefill(model, cache, [text(n, seed=n) for n in (60, 41, 52)])
        for column in given.T[:STEPS]:
            step(model, cache, column)
        with counted() as found:
            for column in given.T[STEPS:]:
                step(model, cache, column)
    assert 0 < found["torch"] / (LAYERS * STEPS) <= most
    assert 0 < found["engine"] / (LAYERS * STEPS) <= most_of_engine
