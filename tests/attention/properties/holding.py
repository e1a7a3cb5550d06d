"""A property as a test: so many drawn cases, and ten times as many with `-m slow`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

MORE = 10


def holds(
    cases: int, **drawn: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function of drawn values into a test of `cases` examples, and a slow one of ten times.

    The examples are the same in every run. The number that passed ends up in the summary.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        def test(cases: int, record_property: Callable[[str, object], None]) -> None:
            passed = 0

            @settings(
                max_examples=cases,
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            )
            @given(**drawn)
            @functools.wraps(body)
            def property_of(**values: Any) -> None:
                nonlocal passed
                body(**values)
                passed += 1

            property_of()
            record_property("cases", passed)

        functools.update_wrapper(test, body)
        # What pytest hands over, rather than what hypothesis draws.
        test.__signature__ = inspect.signature(test, follow_wrapped=False)
        sizes = [cases, pytest.param(MORE * cases, marks=pytest.mark.slow)]
        return pytest.mark.parametrize("cases", sizes)(test)

    return decorate
