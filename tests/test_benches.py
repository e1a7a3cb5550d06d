"""Each benchmark runs on the smallest case and counts what it should."""

from __future__ import annotations

import json

import attention_speed
import graphed_step
import model_speed
import pytest
import throughput

from experiments.bench import UNTIMED
from tests.graphs import on_a_cpu

NAMES = ["full", "sink", "h2o", "quest", "infllm"]
TINY = attention_speed.Shape(heads=4, kv_heads=2, head_size=8, batch=2, context=130)


def test_a_layer_reads_the_bytes_that_are_counted() -> None:
    result = attention_speed.attention(NAMES, 32, [TINY], steps=2)
    rows = {row["backend"]: row for row in result["rows"]}
    assert list(rows) == [attention_speed.BASELINE, *NAMES]
    # Two turns of three untimed, one warm and one cold step after 130 tokens; rows x heads = 4,
    # 8 floats a key.
    assert rows["full"]["read_bytes"] == 2 * 140 * 4 * 32
    assert rows["sink"]["read_bytes"] == rows["h2o"]["read_bytes"] == 2 * 32 * 4 * 32
    assert rows["quest"]["read_bytes"] <= (2 * 32 + 18) * 4 * 32  # two bounds of each of 9 pages
    assert rows["h2o"]["held_bytes"] < rows["full"]["held_bytes"] < rows["quest"]["held_bytes"]
    assert attention_speed.attention(["full"], 32, [TINY], memory=1000)["left_out"]


def test_a_model_holds_the_bytes_that_are_counted() -> None:
    point = model_speed.Point(2, 130)
    result = model_speed.model(NAMES, 32, [point], shape="tiny", dtype="float32", steps=2)
    rows = {row["backend"]: row for row in result["rows"]}
    assert list(rows) == [attention_speed.BASELINE, *NAMES]
    per_token = 2 * 2 * 16 * 2 * 4  # layers, KV heads, D, keys and values, bytes
    expected = 2 * (130 + UNTIMED + 2) * per_token
    assert rows["full"]["held_bytes"] == rows[attention_speed.BASELINE]["held_bytes"] == expected
    assert rows["h2o"]["held_bytes"] < expected
    assert model_speed.model(["full"], 32, [point], shape="tiny", memory=1000)["left_out"]


def test_peers_decode_the_same_tokens(capfd: pytest.CaptureFixture[str]) -> None:
    line = "--backends h2o --level easy --problems 2 --max-new-tokens 12 --single 1 --repeats 1"
    assert throughput.main([*line.split(), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [row["same"] for row in rows[:3]] == ["2/2", "2/2", "1/1"]


def test_captured_and_eager_steps_choose_the_same_tokens(
    capfd: pytest.CaptureFixture[str],
) -> None:
    small = "--shape tiny --device cpu --context 40 --budget 32 --steps 3 --dtypes float32"
    with on_a_cpu():
        assert graphed_step.main([*small.split(), "--batches", "3", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [(row["failed"], row["same"]) for row in rows] == [(None, 1)] * 5
