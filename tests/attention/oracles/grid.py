"""Which cases are compared: every family x method x grouping x budget x dtype."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Variant:
    """A method with parameters, and the model and prompt on which it shows itself."""

    method: str
    params: tuple[tuple[str, Any], ...] = ()
    layers: int = 2
    sharp: float = 1.0
    prompt: int | None = None  # None: goes round


def variants() -> list[Variant]:
    found = [Variant("full")]
    for method, budgets in BUDGETS.items():
        assert budgets[0] == MINIMUM[method]
        for budget in budgets:
            params: tuple[tuple[str, Any], ...] = (("budget", budget),)
            if method == "quest":
                # With its two dense layers quest needs a deeper model to differ at all.
                found.append(Variant(method, params, layers=4))
                found.append(Variant(method, (*params, ("dense_layers", 0))))
            else:
                found.append(Variant(method, params))
    # After a prompt longer than the budget h2o's heavy set hardly ever changes again: nobody
    # outscores what a whole prompt added up. Short prompts and sharper attention let newcomers in.
    found += [Variant("h2o", (("budget", b),), sharp=2.0, prompt=5) for b in (7, 16, 33, 64)]
    found += [Variant("infllm", (("budget", b),), sharp=2.0, prompt=5) for b in (16, 64)]
    return found


def full_grid() -> list[Case]:
    """Every variant on every family and grouping in every dtype."""
    return [
        case(variant, i, family, heads, dtype)
        for family in FAMILIES
        for heads in HEADS
        for i, variant in enumerate(variants())
        for dtype in DTYPES
    ]


def sample() -> list[Case]:
    """Every variant once in each dtype; families, groupings and prompts go round."""
    return [pick(i, d) for d in range(len(DTYPES)) for i in range(len(variants()))]


def small_sample() -> list[Case]:
    """Every variant once, dtypes by turns: what the test suite runs each time."""
    return [pick(i, (i + i // 2) % 2) for i in range(len(variants()))]


def pick(i: int, d: int) -> Case:
    family, heads = FAMILIES[(i + d) % 3], HEADS[(i + i // 3 + d) % 3]
    return case(variants()[i], i + i // 9, family, heads, DTYPES[d])


def case(v: Variant, i: int, family: str, heads: tuple[int, int], dtype: torch.dtype) -> Case:
    prompt = PROMPTS[i % len(PROMPTS)] if v.prompt is None else v.prompt
    return Case(
        family, heads, v.method, v.params, dtype, layers=v.layers, prompt=prompt, sharp=v.sharp
    )
