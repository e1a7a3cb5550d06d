"""Which of many cases every run of the tests takes, and which wait for the mark `slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_slow(cases: Iterable[Any], fast: Collection[int] | int) -> list[Any]:
    """Marks all cases slow but the first ones, or those at the given places."""
    keep = range(fast) if isinstance(fast, int) else fast
    return [
        case if place in keep else pytest.param(*_values(case), marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
