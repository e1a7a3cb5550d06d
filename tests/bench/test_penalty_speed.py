"""The penalty benchmark: what it measures, and that all its ways compute the same."""

from __future__ import annotations

import json
import random

import penalty_speed as speed
import pytest
import torch

from attention.errors import InvalidValue
from lil.penalties import lz_engine
from tests.lil.oracles import lz_penalty
from tests.lil.oracles.streams import stream

CPU = torch.device("cpu")
TINY = speed.Shape(batch=3, vocabulary=40, context=30, window=16, buffer=4)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
WAYS = ["lz", "lz in place", "lz by row", "unfold", "unfold by length", "repetition", "copy"]


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SIZES", SIZES)


@pytest.mark.parametrize("find", [speed.suffixes, speed.suffixes_by_length])
def test_the_plain_ways_equal_the_oracle(find) -> None:
    rng = random.Random(5)
    for _ in range(60):
        V, window, buffer = rng.randint(3, 40), rng.randint(2, 60), rng.randint(1, 20)
        if window < buffer:  # a length has no window to slide over
            continue
        rows = [stream(rng, V, window + buffer + rng.randint(0, 9)) for _ in range(3)]
        n = min(len(row) for row in rows)
        ids = torch.tensor([row[:n] for row in rows])
        scores = torch.randn(3, V)
        got = speed.unfolded(ids, scores, 0.3, window, buffer, find)
        sizes = {"alpha": 0.3, "window": window, "buffer": buffer}
        pairs = zip(scores.tolist(), ids.tolist(), strict=True)
        wanted = [lz_penalty.penalise(row, history, **sizes) for row, history in pairs]
        torch.testing.assert_close(got, torch.tensor(wanted), atol=1e-5, rtol=1e-5)


def test_every_way_stands_beside_the_decode_step() -> None:
    told: list[str] = []
    found = speed.penalty([TINY], steps=2, layers=2, dtype="float32", progress=told.append)
    rows = {row["way"]: row for row in found["rows"]}
    assert list(rows) == [*WAYS, "decode step"]
    assert told == ["batch 3: penalties", "batch 3: decode step"]
    for row in rows.values():
        assert 0 < row["least_ms"] <= row["ms"]
        assert row["of_decode_step"] == pytest.approx(row["ms"] / rows["decode step"]["ms"])
        assert row["least_times_lz"] == pytest.approx(row["least_ms"] / rows["lz"]["least_ms"])
    # Tokens and lengths of 20 places, and ids of 31 tokens with twice their room; with rows that
    # have parameters of their own, narrower tokens and these parameters.
    memory = {"torch": (8 + 4) * 20, "cpp": (4 + 4) * 20 + 2 * 4 + 3 * 4 + 8}[lz_engine(CPU)]
    assert found["lz_state_bytes_per_row"] == {"3": memory + 8 * 62}
    assert "2 layers" in found["decode_step"]
    assert found["left_out"] == []


def test_streams_repeat_themselves() -> None:
    ids = speed.streams(speed.Shape(batch=2, vocabulary=10**6), 400)
    assert torch.equal(ids[0, :150], ids[0, 150:300])
    assert len(set(ids[1].tolist())) > 390


def test_ways_that_differ_end_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    right = speed.suffixes_by_length
    # As if no match were longer than three tokens.
    monkeypatch.setattr(speed, "suffixes_by_length", lambda w, b: right(w, b).clamp(max=3))
    with pytest.raises(RuntimeError, match="'unfold by length' and 'lz' differ"):
        speed.penalty([speed.Shape(batch=2, vocabulary=400)], steps=1, layers=0)


def test_a_model_beyond_memory_is_named() -> None:
    found = speed.penalty([TINY], steps=1, layers=1, memory=1000)
    assert [row["way"] for row in found["rows"]] == WAYS
    assert found["left_out"] == ["decode step, batch 3: not enough memory"]
    assert found["rows"][0]["of_decode_step"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"layers": -1}, "layers = -1"),
        ({"dtype": "int8"}, "dtype = 'int8'"),
        ({"shapes": []}, "at least one"),
        ({"shapes": [speed.Shape(batch=0)]}, "batch = 0"),
        ({"shapes": [speed.Shape(vocabulary=1)]}, "vocabulary = 1"),
        ({"shapes": [speed.Shape(window=0)]}, "window = 0"),
        ({"shapes": [speed.Shape(context=543)]}, "context = 543: .* 544 tokens"),
        ({"shapes": [speed.Shape(device="gpu")]}, "device = 'gpu'"),
    ],
)
def test_bad_values(options: dict, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        speed.penalty(**options)


def test_command(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--vocabulary", "40", "--context", "30", "--window", "16", "--buffer", "4"]
    line = ["--batches", "1,2", "--steps", "1", "--layers", "1", *sizes]
    assert speed.main([*line, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [(r["batch"], r["way"]) for r in rows] == [
        *((1, way) for way in WAYS),
        *((2, way) for way in WAYS),
        (1, "decode step"),
        (2, "decode step"),
    ]
    assert speed.main(line) == 0
    assert "unfold by length" in capfd.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        speed.main([*line, "--budget", "3"])
    assert "unrecognized arguments: --budget" in capfd.readouterr().err
