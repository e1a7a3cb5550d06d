"""Worlds drawn from outputs that differ by chance alone, and one with an effect planted."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import null_worlds
import pytest
from synthetic_samples import sample

from lil import Trace


@dataclass(frozen=True)
class Length:
    """Of a trace what a world asks for: its tokens and the keys that they read."""

    tokens: int

    def cost_at(self, tokens: int) -> Any:
        return SimpleNamespace(keys_read=50.0 * tokens)


@pytest.fixture(scope="module")
def pool() -> null_worlds.Pool:
    """Thirty problems with eight outputs each, whose lengths hardly scatter."""
    draw = random.Random(0)

    def text(item: int) -> null_worlds.Text:
        tokens = 200 + 10 * item + draw.randrange(10)
        plain = sample(item, output=str(tokens), dataset="pool")
        return null_worlds.Text(plain, cast(Trace, Length(tokens)), draw.random() < 0.9)

    return null_worlds.Pool("made", {str(n): [text(n) for _ in range(8)] for n in range(30)}, 4)


def test_nothing_is_claimed_and_ratios_are_one(pool: null_worlds.Pool) -> None:
    found = null_worlds.measured(pool, worlds=3, problems=60)
    assert (found["any_claim"], found["claims"]) == (0, {})
    assert found["mean_length_ratio"] == pytest.approx(1, abs=0.002)
    assert 0.005 < found["scatter"] < 0.02
    (few, *_) = null_worlds.coverage(pool, worlds=2)
    assert few["problems"] == 14
    share, intervals = few["mean_tokens"]
    assert intervals == 2 * null_worlds.METHODS
    assert share > 0.7


def test_a_planted_effect_is_found(pool: null_worlds.Pool) -> None:
    """A tenth of the outputs twice as long: log 2 / 10 in the mean of logs."""
    found = null_worlds.power(pool, worlds=3, problems=60)
    assert found["found"] == 1
    assert found["false_beside"] == 0
    assert found["length_ratio"] == pytest.approx(2**0.1, abs=0.03)
