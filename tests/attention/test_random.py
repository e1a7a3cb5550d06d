"""Random: numbers looked up in a table are those of the oracle, however long a row gets."""

from __future__ import annotations

import attention
from attention.testing.driving import OneLayer
from tests.attention.oracles.random import number


def test_numbers_are_the_same_at_any_length() -> None:
    one = OneLayer(attention.get("random", budget=12, sinks=2, recent=3, seed=5))
    one.feed(1020)
    for n in range(1021, 1031):  # the first table has 1,024 tokens
        one.feed()
        for j, kept in enumerate(one.kept()):
            middle = sorted(range(2, n - 2), key=lambda p: -number(5, 0, j, p))
            assert kept == sorted([0, 1, *middle[:7], n - 2, n - 1])
