"""The entropy bound: by hand, and around sources whose entropy is known."""

from __future__ import annotations

import math

import pytest

from attention.errors import InvalidValue
from lil.compression.curves import entropy_bounds


def test_entropy_bound_by_hand():
    """|A| = 2, Ls = 9: eps = (3 + 3 * 3 + log2 4.5) / 8."""
    low, high = entropy_bounds(0.9, lookahead=9, alphabet=2)
    assert high == 0.9
    assert low == pytest.approx(0.9 - (12 + math.log2(4.5)) / 8)
    low, _ = entropy_bounds(0.5, lookahead=2**20, alphabet=256)
    assert low == pytest.approx(0.5 - (3 + 3 * 2.5 + 19 / 8) / (2**20 - 1), abs=1e-9)


# Sources: which pairs of neighbours they forbid.
SOURCES = {
    "binary": (2, set()),
    "no two ones": (2, {(1, 1)}),
    "never the same twice": (3, {(0, 0), (1, 1), (2, 2)}),
    "upwards only": (4, {(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)}),
    "one string": (2, {(0, 1), (1, 0), (1, 1)}),
}


@pytest.mark.parametrize(
    "arguments", [(-0.1, 9, 2), (0.5, 1, 2), (0.5, 9, 1), (math.nan, 9, 2), (math.inf, 9, 2)]
)
def test_entropy_of_nonsense_is_refused(arguments):
    with pytest.raises(InvalidValue):
        entropy_bounds(*arguments)
