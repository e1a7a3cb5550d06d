"""`lil bench`: a step of one's own method beside one of full attention."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from attention.errors import InvalidValue
from attention.methods import get
from experiments import bench
from experiments.cli import main

TINY = bench.Shape(heads=4, kv_heads=2, head_size=8, batch=2, context=130)
SIZES = "--heads 4 --kv-heads 2 --head-size 8 --batch 2 --context 130 --repeats 2"


def test_a_row_for_full_attention_and_for_each_method() -> None:
    methods = {"h2o": bench.sparse("h2o", 32), "mine": bench.sparse("quest(page=8)", 64)}
    rows = bench.decode_steps(methods, TINY, repeats=2)
    assert [row.method for row in rows] == ["full", "h2o", "mine"]
    assert [row.budget for row in rows] == [None, 32, 64]
    full, h2o, quest = rows
    assert full.times_full is None
    assert all(row.times_full is not None and row.times_full > 0 for row in (h2o, quest))
    assert all(0 < row.least_ms <= row.ms for row in rows)
    # 2 rows, 2 KV heads, keys and values of 8 floats: 130 tokens and 5 steps, or 32.
    assert full.held_bytes == 2 * 2 * 2 * 8 * 4 * 135
    assert h2o.held_bytes < full.held_bytes < quest.held_bytes


def test_a_ratio_is_of_steps_made_after_each_other() -> None:
    # Full attention and h2o in turn, three of them untimed: 8 and 4, 2 and 4, 4 and 4 seconds.
    clock = iter([1.0] * 6 + [8.0, 4.0, 2.0, 4.0, 4.0, 4.0])
    with mock.patch.object(bench, "seconds", side_effect=lambda *_: next(clock)):
        full, h2o = bench.decode_steps({"h2o": get("h2o", budget=32)}, TINY, repeats=3)
    assert (full.ms, full.least_ms, h2o.ms) == (4000, 2000, 4000)
    assert h2o.times_full == 1  # of 2, 0.5 and 1


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"heads": 3}, "heads = 3: expected a multiple of kv_heads = 2"),
        ({"head_size": 7}, "head_size = 7"),
        ({"dtype": "int8"}, "dtype = 'int8'"),
        ({"device": "gpu"}, "device = 'gpu'"),
        ({"device": "auto"}, "device = 'auto'"),
        ({"engine": "cuda"}, "engine = 'cuda'"),
        ({"context": 10**15}, "context = 1000000000000000: expected less: keys and values take"),
    ],
)
def test_layers_that_cannot_be(shape: dict, message: str) -> None:
    sizes = {"heads": 4, "kv_heads": 2, "head_size": 8, "context": 10}
    with pytest.raises(InvalidValue, match=message):
        bench.decode_steps({}, bench.Shape(**{**sizes, **shape}))


def test_the_command_takes_a_method_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = "from attention.methods.tova import TOVA\n\nclass Mine(TOVA):\n    name = 'mine'\n"
    (tmp_path / "bench_of_mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    own = ["bench", "bench_of_mine:Mine", "full", "--budget", "32", "--threads", "1"]
    own += SIZES.split()
    assert main([*own, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [row["method"] for row in document["rows"]] == ["full", "bench_of_mine:Mine"]
    assert document["shape"]["context"] == 130
    assert (document["repeats"], document["threads"]) == (2, 1)
    assert main(own) == 0
    out = capfd.readouterr().out
    assert "times full" in out
    assert "bench_of_mine:Mine" in out
