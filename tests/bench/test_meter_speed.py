"""The meter's benchmark: figures with their conditions."""

from __future__ import annotations

import json
import zlib

import meter_speed as bench
import pytest

from attention.errors import InvalidValue


def test_reports_both_times_and_the_conditions():
    result = bench.meter(tokens=4000, f=100, repeats=3, seed=1)
    assert result["original_bytes"] == 16_000
    # Random letters carry log2(26) = 4.7 of 8 bits.
    assert 0.58 < result["compressed_bytes"] / result["original_bytes"] < 0.68
    assert 0 < result["incremental_ms"] < result["from_scratch_ms"]
    assert result["zlib"] == zlib.ZLIB_RUNTIME_VERSION
    assert bench.meter(4000, 100, 1, 1)["compressed_bytes"] == result["compressed_bytes"]


@pytest.mark.parametrize(
    ("values", "message"),
    [({"tokens": 10}, "tokens = 10"), ({"f": 0}, "f = 0"), ({"repeats": 0}, "repeats = 0")],
)
def test_bad_conditions_are_named(values: dict[str, int], message: str):
    with pytest.raises(InvalidValue, match=message):
        bench.meter(**values)


def test_command(capfd: pytest.CaptureFixture[str]):
    assert bench.main(["--tokens", "2000,700", "--repeats", "2", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [row["tokens"] for row in rows] == [2000, 700]
    assert all(row["incremental_ms"] > 0 for row in rows)
    assert bench.main(["--tokens", "700", "--repeats", "1"]) == 0
    assert "from scratch ms" in capfd.readouterr().out
    assert bench.main(["--tokens", "70"]) == 2
    assert "tokens = 70" in capfd.readouterr().err
