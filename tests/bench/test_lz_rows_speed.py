"""The benchmark of the LZ penalty's rows."""

from __future__ import annotations

import json

import lz_rows_speed as speed
import pytest
from lz_rows_speed import CPU

from lil.penalties import LZRows, lz_engine

needs_cpp = pytest.mark.skipif(lz_engine(CPU) != "cpp", reason="needs a compiler at install")


@needs_cpp
def test_torch_stands_beside_cpp(capfd: pytest.CaptureFixture[str]) -> None:
    line = ["--batches", "1,2", "--steps", "2", "--vocabulary", "50"]
    assert speed.main([*line, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [(row["batch"], row["values"]) for row in rows] == [
        (1, "equal"), (1, "different"), (2, "equal"), (2, "different"),
    ]  # fmt: skip
    for row in rows:
        assert row["times"] == pytest.approx(row["torch_us"] / row["cpp_us"])
    assert speed.main(line) == 0
    assert "different" in capfd.readouterr().out


@needs_cpp
def test_engines_that_differ_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LZRows, "lower", lambda _self, scores, *_: scores)
    with pytest.raises(RuntimeError, match="torch and cpp differ"):
        speed.measured(2, 50, 1, different=False)


def test_bad_values(capfd: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["--steps", "0"]) == 2
    assert "steps = 0" in capfd.readouterr().err
