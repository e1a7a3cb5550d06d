"""The benchmark of compiled steps: a row a backend and batch, and the same tokens."""

from __future__ import annotations

import os

import compiled_step as speed
import pytest


@pytest.mark.slow
def test_both_ways_choose_the_same_tokens() -> None:
    before, told = dict(os.environ), []
    found = speed.compiled_step(
        "tiny", ["full", "quest"], 32, [1, 3], context=40, steps=4, progress=told.append
    )
    assert dict(os.environ) == before
    assert told == ["compiling", *(f"{n}, batch {b}" for b in (1, 3) for n in ("full", "quest"))]
    assert found["compile_s"] > found["load_s"] > 0
    weights = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 3 * 128) + 500 * 64
    assert found["compile_bytes"] > 0
    for row in found["rows"]:
        bytes_a_s = found["bandwidth_bytes_per_s"]
        assert row["of_bytes"] > 4 * weights / bytes_a_s / row["compiled_ms"] * 1e3
        assert row["same"] == 1
        assert row["eager_ms"] > 0 < row["compiled_ms"]
