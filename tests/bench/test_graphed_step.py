"""The benchmark of captured steps, on a CPU with the stand-in for CUDA graphs."""

from __future__ import annotations

import json
from typing import Any

import graphed_step as speed
import pytest

from attention.patching.graphed import GraphedStep
from tests.graphs import on_a_cpu

SMALL = ["--shape", "tiny", "--device", "cpu", "--context", "40", "--budget", "32", "--steps", "3"]


def test_both_ways_choose_the_same_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    with on_a_cpu():
        given = ["--backends", "full,quest", "--batches", "1,3", "--dtypes", "float32", "--json"]
        assert speed.main([*SMALL, *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["backend"], row["batch"]) for row in found["rows"]] == [
        ("full", 1), ("quest", 1), ("full", 3), ("quest", 3),
    ]  # fmt: skip
    for row in found["rows"]:
        assert row["failed"] is None
        assert row["same"] == 1
        assert row["apart"] < 1e-5
        assert row["eager_ms"] > 0 < row["graphs_ms"]


def test_what_fails_is_named_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GraphedStep.run

    def three_fail(self: Any, ids: Any, positions: Any) -> Any:
        if len(ids) == 3:
            raise RuntimeError("no memory for three\nmore of it")
        return run(self, ids, positions)

    monkeypatch.setattr(GraphedStep, "run", three_fail)
    with on_a_cpu():
        given = ["--backends", "full", "--batches", "3,1", "--dtypes", "bfloat16", "--json"]
        assert speed.main([*SMALL, *given]) == 1
    said = capsys.readouterr()
    assert said.err.endswith("WRONG: bfloat16, full, 3: RuntimeError: no memory for three\n")
    first, second = json.loads(said.out)["rows"]
    assert (first["failed"], first["ratio"]) == ("RuntimeError: no memory for three", None)
    assert (second["failed"], second["same"]) == (None, 1)


def test_a_device_that_is_not_there_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["--shape", "tiny", "--device", "cuda:99"]) == 2
    assert "cuda:99" in capsys.readouterr().err
