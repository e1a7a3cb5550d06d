"""A number that is none says so."""

from __future__ import annotations

import math

import pytest

from attention.errors import InvalidValue, check_number


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_finite_is_what_is_expected(wrong: float) -> None:
    with pytest.raises(InvalidValue, match=r"rate = .*expected a number above 0, finite"):
        check_number("rate", wrong, "a number above 0", above=0)
    with pytest.raises(InvalidValue, match=r"expected a finite number$"):
        check_number("rate", wrong, "a finite number")
    assert check_number("rate", 1e300) == 1e300
