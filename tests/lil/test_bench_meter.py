"""The meter's benchmark: figures with their conditions, as text and as one JSON document."""

from __future__ import annotations

import json
import runpy
import sys
import zlib
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from lil import bench

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_meter.py"


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


def test_the_script_prints_one_json_document_or_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    script = runpy.run_path(str(SCRIPT))
    command = [SCRIPT.name, "--tokens", "2000", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    assert script["main"]() == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 2000
    monkeypatch.setattr(sys, "argv", [*command, "--f", "0"])
    assert script["main"]() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("f = 0")
    monkeypatch.setattr(sys, "argv", command)
    assert script["main"]() == 0
    assert "from scratch" in capsys.readouterr().out
