"""The attention benchmark: what it measures and what it says of it."""

from __future__ import annotations

import json
from unittest import mock

import attention_speed as speed
import pytest
import torch

from attention.errors import InvalidValue
from experiments import bench

TINY = speed.Shape(heads=4, kv_heads=2, head_size=8, batch=2, context=130)
NAMES = ["full", "sink", "h2o", "quest", "infllm"]


@pytest.mark.slow
def test_every_backend_stands_beside_transformers() -> None:
    told: list[str] = []
    found = speed.attention(NAMES, 32, [TINY], steps=2, progress=told.append)
    rows = {row["backend"]: row for row in found["rows"]}
    assert list(rows) == [speed.BASELINE, *NAMES]
    assert len(told) == 1 + 2 * len(rows)
    assert rows["full"]["faster_than_full"] is None
    for row in rows.values():
        assert min(row[name] for name in ("ms", "mean_ms", "cold_ms")) > 0
        assert row["of_floor"] == pytest.approx(row["floor_ms"] / row["ms"])
    for name in NAMES[1:]:
        assert rows[name]["faster_than_full"] > 0
        assert rows[name]["faster_than_full_cold"] > 0
        assert rows[name]["of_shortest"] is None  # this is the shortest context
    # Two turns of three untimed, one warm and one cold step after 130 tokens; rows x heads = 4, 8
    # floats a key.
    assert found["turns"] == 2
    assert rows["full"]["read_bytes"] == 2 * 140 * 4 * 32
    assert rows["sink"]["read_bytes"] == rows["h2o"]["read_bytes"] == 2 * 32 * 4 * 32
    # Quest reads two bounds for each of 9 pages of 16, too.
    assert rows["quest"]["read_bytes"] <= (2 * 32 + 18) * 4 * 32
    assert rows["h2o"]["held_bytes"] < rows["full"]["held_bytes"] < rows["quest"]["held_bytes"]


@pytest.mark.parametrize("name", ["full", "h2o", "rkv", "quest", "infllm"])
def test_no_prompt_is_attended_to(name: str) -> None:
    function = torch.nn.functional.scaled_dot_product_attention
    with mock.patch.object(
        torch.nn.functional, "scaled_dot_product_attention", side_effect=function
    ) as fused:
        found = speed.attention([name], 256, [TINY], steps=1)
    assert [row["backend"] for row in found["rows"]] == [speed.BASELINE, name]
    assert fused.call_count == speed.UNTIMED + 2  # the baseline's steps


def test_a_prompt_beyond_the_budget_is_not_spared() -> None:
    found = speed.attention(["raas"], 64, [TINY], steps=1)
    assert [row["backend"] for row in found["rows"]] == [speed.BASELINE, "raas"]


def test_points_beyond_memory_are_named() -> None:
    found = speed.attention(["full"], 32, [TINY], steps=1, memory=1000)
    assert found["rows"] == []
    assert found["left_out"] == ["context 130, batch 2: not enough memory"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"backends": ["fulll"]}, "did you mean 'full'"),
        ({"shapes": [speed.Shape(dtype="int8")]}, "dtype = 'int8'"),
        ({"shapes": [speed.Shape(device="gpu")]}, "device = 'gpu'"),
        ({"shapes": []}, "at least one"),
    ],
)
def test_bad_values(options: dict, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        speed.attention(**options)


def test_command(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--contexts", "64,100", "--batches", "1", "--budget", "32", "--steps", "1"]
    assert speed.main([*arguments, "--backends", "full,h2o", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [(r["context"], r["backend"]) for r in rows] == [
        (context, name) for context in (64, 100) for name in (speed.BASELINE, "full", "h2o")
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tokens 3", "unrecognized arguments: --tokens"),
        ("--contexts 3,x", "argument --contexts: '3,x': expected whole numbers above 0"),
        ("--backends fulll", "did you mean 'full'"),
    ],
)
def test_bad_flags(line: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        code = speed.main(line.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    said = capfd.readouterr()
    assert message in said.err
    assert said.out == ""


def test_ratios_are_medians_of_those_of_turns() -> None:
    clock = iter([1, 2, 4, 4, 8, 16, 3, 9, 3] * 2)
    with mock.patch.object(
        speed, "_steps", side_effect=lambda *_: speed.Times(float(next(clock)), 1.0, 2.0)
    ):
        found = speed.attention(["full", "h2o"], 64, [TINY], steps=3)
    rows = {row["backend"]: row for row in found["rows"]}
    # Turns of transformers, full and h2o: 1, 2, 4; 4, 8, 16; 3, 9, 3.
    assert rows["full"]["ms"] == 8
    assert rows["h2o"]["faster_than_full"] == 0.5  # of 0.5, 0.5 and 3
    assert rows["full"]["faster_than_transformers"] == 0.5  # of 0.5, 0.5 and 1/3
    assert rows["h2o"]["faster_than_full_cold"] == 1


def test_points_take_turns_where_memory_allows() -> None:
    longer = speed.Shape(heads=4, kv_heads=2, head_size=8, batch=2, context=200)
    told: list[str] = []
    found = speed.attention(["h2o"], 64, [TINY, longer], steps=2, progress=told.append)
    turns = [line for line in told if line.startswith("turn")]
    assert [line.split(":")[0] for line in turns] == ["turn 1"] * 4 + ["turn 2"] * 4
    rows = {(row["backend"], row["context"]): row for row in found["rows"]}
    assert rows["h2o", 200]["of_shortest"] > 0
    assert rows["h2o", 130]["of_shortest"] is None
    told.clear()
    need = speed._memory(longer, [bench.sparse("h2o", 64)])
    found = speed.attention(["h2o"], 64, [TINY, longer], 2, memory=need, progress=told.append)
    assert [line.split(":")[0] for line in told].count("turn 1") == 4
    assert not found["left_out"]
    assert {row["of_shortest"] for row in found["rows"]} == {None}
