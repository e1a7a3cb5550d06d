"""Which cases are compared: every family x method x grouping x budget x dtype."""

from __future__ import annotations

from typing import Any

import torch

from .compare import MINIMUM, Case
from .models import HEADS
from .naive_model import FAMILIES

BUDGETS = {
    "sink": (5, 6, 7, 11, 16, 32, 64),
    "h2o": (2, 3, 4, 7, 16, 33, 64),
    "quest": (32, 48, 64),
    "infllm": (16, 17, 23, 32, 48, 64),
}
DTYPES = (torch.float32, torch.float64)
PROMPTS = (37, 80, 5)  # longer than every budget, in between, and shorter than most

Variant = tuple[str, tuple[tuple[str, Any], ...], int]


def variants() -> list[Variant]:
    """(method, parameters, layers)."""
    found: list[Variant] = [("full", (), 2)]
    for method, budgets in BUDGETS.items():
        assert budgets[0] == MINIMUM[method]
        for budget in budgets:
            params: tuple[tuple[str, Any], ...] = (("budget", budget),)
            if method == "quest":
                # With its two dense layers quest needs a deeper model to differ at all.
                found.append((method, params, 4))
                found.append((method, (*params, ("dense_layers", 0)), 2))
            else:
                found.append((method, params, 2))
    return found


def full_grid() -> list[Case]:
    """Every combination; the prompt's length goes round."""
    return [
        Case(family, heads, method, params, dtype, layers, PROMPTS[i % len(PROMPTS)])
        for family in FAMILIES
        for heads in HEADS
        for i, (method, params, layers) in enumerate(variants())
        for dtype in DTYPES
    ]


def sample() -> list[Case]:
    """Every variant once in each dtype; families, groupings and prompts go round."""
    return [
        Case(
            FAMILIES[(i + d) % 3],
            HEADS[(i + i // 3 + d) % 3],
            method,
            params,
            dtype,
            layers,
            PROMPTS[(i + i // 9) % 3],
        )
        for d, dtype in enumerate(DTYPES)
        for i, (method, params, layers) in enumerate(variants())
    ]
