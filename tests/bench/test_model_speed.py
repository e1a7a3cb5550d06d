"""The benchmark of a whole model's step: what it fills, measures and says of it."""

from __future__ import annotations

import json
from unittest import mock

import model_speed as speed
import pytest
import torch
from attention_speed import BASELINE
from no_attention import rest_seconds
from random_model import SHAPES, count_weights, random_model

from attention.errors import InvalidValue
from attention.methods import get
from experiments.bench import UNTIMED

NAMES = ["full", "h2o", "sink", "quest", "infllm"]
POINT = speed.Point(2, 130)
#: Numbers of one token in the tiny shape: 2 layers x 2 KV heads x 16, keys and values.
PER_TOKEN = 2 * 2 * 16 * 2


def tiny() -> object:
    config = speed._config("tiny", None, 200)
    return random_model(config, torch.float32, "cpu")


def test_every_backend_stands_beside_transformers() -> None:
    told: list[str] = []
    settings = {"shape": "tiny", "dtype": "float32", "steps": 2}
    found = speed.model(NAMES, 32, [POINT], **settings, progress=told.append)
    rows = {row["backend"]: row for row in found["rows"]}
    assert list(rows) == [BASELINE, *NAMES]
    assert told == ["random weights", *(f"context 130, batch 2: {name}" for name in rows)]
    for row in rows.values():
        assert 0 < row["least_ms"] <= row["ms"]
        assert row["attention_share"] == pytest.approx(max(0, 1 - row["rest_ms"] / row["ms"]))
    for name in NAMES[1:]:
        expected = rows["full"]["ms"] / rows[name]["ms"]
        assert rows[name]["faster_than_full"] == pytest.approx(expected)
    # Two rows that saw 130 tokens and the steps'.
    seen = 2 * (130 + UNTIMED + 2)
    assert rows["full"]["held_bytes"] == rows[BASELINE]["held_bytes"] == seen * PER_TOKEN * 4
    for name in ("sink", "h2o"):
        assert 2 * 32 * PER_TOKEN * 4 <= rows[name]["held_bytes"] < seen * PER_TOKEN * 2
    assert rows["full"]["held_bytes"] < rows["quest"]["held_bytes"]
    assert "2 layers" in found["model"]
    assert found["left_out"] == []


@pytest.mark.parametrize("name", ["full", "quest"])
def test_a_filled_cache_has_seen_the_context_and_attended_to_nothing(name: str) -> None:
    model = tiny()
    backend = get(name, **({} if name == "full" else {"budget": 32, "dense_layers": 0}))
    function = torch.nn.functional.scaled_dot_product_attention
    with (
        backend.on(model) as cache,  # which tries a few tokens before anything else
        mock.patch.object(
            torch.nn.functional, "scaled_dot_product_attention", side_effect=function
        ) as fused,
    ):
        speed.fill(cache, model, POINT)
        assert fused.call_count == 0
        assert cache.seen.tolist() == [130, 130]
        assert [kept.shape for kept in cache.kept_positions(1)] == [(2, 130)] * 2
        ids = torch.zeros(2, 1, dtype=torch.int64)
        with torch.no_grad():
            model(ids, position_ids=cache.seen[:, None], past_key_values=cache, use_cache=True)
        assert cache.seen.tolist() == [131, 131]


def test_the_rest_is_a_forward_without_attention() -> None:
    model = tiny()
    before = model.config._attn_implementation
    function = torch.nn.functional.scaled_dot_product_attention
    with mock.patch.object(
        torch.nn.functional, "scaled_dot_product_attention", side_effect=function
    ) as fused:
        assert rest_seconds(model, 3, repeats=1) > 0
        assert fused.call_count == 0
        model(torch.zeros(1, 2, dtype=torch.int64))
        assert fused.call_count == 2  # the model attends again, once a layer
    assert model.config._attn_implementation == before


def test_weights_are_counted() -> None:
    config = speed._config("tiny", 1, 10)
    E, I, V = 64, 128, 500  # noqa: E741
    heads = E * E + E + 2 * (E * 32 + 32) + E * E  # q, k, v with biases, o
    assert count_weights(config) == V * E + heads + 3 * E * I + 3 * E
    assert speed._config("qwen2-1.5b", None, 10).num_hidden_layers == 28
    assert SHAPES["qwen2-1.5b"]["vocab_size"] == 151_936


def test_points_beyond_memory_are_named() -> None:
    found = speed.model(["full"], 32, [POINT], shape="tiny", memory=1000)
    assert found["rows"] == []
    assert len(found["left_out"]) == 1
    assert "weights" in found["left_out"][0]
    config = speed._config("tiny", None, 1_000_000)
    room = 2 * count_weights(config) + 10_000_000
    points = [speed.Point(1, 1_000_000), speed.Point(1, 100)]
    found = speed.model(["full", "sink"], 32, points, shape="tiny", steps=1, memory=room)
    assert [(row["backend"], row["context"]) for row in found["rows"]] == [
        (name, 100) for name in (BASELINE, "full", "sink")
    ]
    assert [line.split(" takes")[0] for line in found["left_out"]] == [
        f"context 1000000, batch 1: {name}:" for name in (BASELINE, "full", "sink")
    ]


def test_what_is_needed_covers_what_is_held() -> None:
    """Stores double at the first step: the need is above twice the keys and values."""
    config = speed._config("tiny", None, 130)
    whole = 2 * 130 * PER_TOKEN * 2  # bfloat16
    need = {
        name: speed._needed(config, torch.bfloat16, POINT, backend)
        for name, backend in (
            ("transformers", None),
            ("full", get("full")),
            ("sink", get("sink", budget=8)),
        )
    }
    assert need["transformers"] > whole
    assert need["full"] > 2 * whole
    long = speed.Point(2, 1_000_000)
    evicting = speed._needed(config, torch.bfloat16, long, get("sink", budget=8))
    keeping = speed._needed(config, torch.bfloat16, long, get("full"))
    assert evicting < keeping


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"layers": 0}, "layers = 0"),
        ({"dtype": "int8"}, "dtype = 'int8'"),
        ({"shape": "tinny"}, "did you mean 'tiny'"),
        ({"points": []}, "at least one"),
        ({"points": [speed.Point(0, 5)]}, "batch = 0"),
        ({"device": "gpu"}, "device = 'gpu'"),
        ({"backends": ["fulll"]}, "did you mean 'full'"),
    ],
)
def test_bad_values(options: dict, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        speed.model(**{"shape": "tiny", **options})


def test_command(capfd: pytest.CaptureFixture[str]) -> None:
    line = ["--shape", "tiny", "--contexts", "40", "--batches", "1"]
    line += ["--backends", "full", "--steps", "1", "--layers", "1"]
    assert speed.main([*line, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [row["backend"] for row in found["rows"]] == [BASELINE, "full"]
    assert "1 layers" in found["model"]
    assert speed.main(line) == 0
    out = capfd.readouterr().out
    assert "attention" in out
    assert max(map(len, out.splitlines())) <= 80
