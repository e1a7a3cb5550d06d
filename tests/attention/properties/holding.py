"""A property as a test: so many drawn cases, and ten times as many with `-m slow`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

MORE = 10


def holds(
    cases: int, *drawn: SearchStrategy[Any]
) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Turn a function of a drawn value into a test, and a slow one of ten times as many cases.

    The cases are the same in every run. The number that passed ends up in the summary.

    Args:
        cases: how many of each strategy.
        drawn: strategies, looked at one after the other.
    """

    def decorate(body: Callable[[Any], None]) -> Callable[..., None]:
        (argument,) = inspect.signature(body).parameters

        def test(cases: int, record_property: Callable[[str, object], None]) -> None:
            passed = 0
            for number, strategy in enumerate(drawn):
                # A fixed seed, and another one for each strategy: shapes are drawn from it, too.
                @seed(f"{body.__name__} {number}")
                @settings(
                    max_examples=cases,
                    database=None,
                    deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
                )
                @given(**{argument: strategy})
                @functools.wraps(body)
                def property_of(**value: Any) -> None:
                    nonlocal passed
                    body(**value)
                    passed += 1

                property_of()
            record_property("cases", passed)

        functools.update_wrapper(test, body)
        # What pytest hands over, rather than what hypothesis draws.
        test.__signature__ = inspect.signature(test, follow_wrapped=False)
        sizes = [cases, pytest.param(MORE * cases, marks=pytest.mark.slow)]
        return pytest.mark.parametrize("cases", sizes)(test)

    return decorate
