"""The benchmark of a step: what is charged to which part."""

from __future__ import annotations

import json
import time

import pytest
import step_speed as speed
import torch

from attention.engines import ENGINES
from attention.errors import InvalidValue


def test_what_runs_inside_a_part_is_charged_to_itself() -> None:
    clock = speed.Clock()

    def inner() -> None:
        time.sleep(0.02)

    def outer() -> None:
        time.sleep(0.01)
        clock.wrapped("inner", inner)()
        time.sleep(0.01)

    clock.wrapped("outer", outer)()
    assert set(clock.seconds) == {"outer", "inner"}
    # Sleeps are never shorter than asked for.
    assert clock.seconds["inner"] >= 0.02
    assert clock.seconds["outer"] >= 0.02
    with clock.at(speed.PROMPT):
        clock.wrapped("inner", inner)()
    assert clock.seconds[speed.PROMPT] >= 0.02


def test_time_between_parts_is_charged_to_nobody() -> None:
    clock = speed.Clock()
    clock.wrapped("one", lambda: None)()
    time.sleep(0.05)
    clock.wrapped("one", lambda: None)()
    assert clock.seconds["one"] < 0.05


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_parts_of_a_step(engine: str) -> None:
    before = torch.get_num_threads()
    found = speed.step(
        ["full", "quest"], 64, [2], [1], steps=8, engine=engine, penalties=["lz"], dataset="easy"
    )
    assert torch.get_num_threads() == before
    assert found["engine"] in ENGINES
    assert [row["backend"] for row in found["rows"]] == ["full", "quest"]
    for row in found["rows"]:
        assert sum(row[part] for part in speed.PARTS) == pytest.approx(row["ms"])
        assert min(row[part] for part in speed.PARTS) > 0
        assert row["bookkeeping"] == pytest.approx((row["statistics"] + row["loop"]) / row["ms"])
        assert row["mean_rows"] == 2
        assert row["tokens_per_s"] == pytest.approx(2e3 / row["ms"])
    full, quest = found["rows"]
    assert full["read_bytes"] > quest["read_bytes"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 3}, "steps = 3"),
        ({"engine": "cuda"}, "engine = 'cuda'"),
        ({"backends": ["questt"]}, "did you mean 'quest'"),
        ({"penalties": ["lzz"]}, "lzz"),
        ({"batches": [10**6]}, "batches = 1000000"),
    ],
)
def test_bad_values(options: dict, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        speed.step(**options)


def test_command(capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--batches", "1", "--steps", "4", "--backends", "full", "--dataset", "easy"]
    assert speed.main(given) == 0
    told = capfd.readouterr().out
    assert "milliseconds of a decode step" in told
    assert "floors of two parts" in told
    assert speed.main([*given, "--json"]) == 0
    assert [row["batch"] for row in json.loads(capfd.readouterr().out)["rows"]] == [1]
    assert speed.main([*given, "--steps", "3"]) == 2
    with pytest.raises(SystemExit, match="2"):
        speed.main([*given, "--threads", "0"])
