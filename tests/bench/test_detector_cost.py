"""The benchmark of watching: what is held is what a detector remembers."""

from __future__ import annotations

import json

import detector_cost as cost
import pytest

from attention.errors import InvalidValue


def test_what_a_detector_holds() -> None:
    names = "budget,recurrence,stall,margin,either(parts='budget+recurrence')"
    short, long = (
        {row["detector"]: row for row in cost.detectors(names, tokens, repeats=2)["rows"]}
        for tokens in (2000, 8000)
    )
    assert list(long) == ["budget", "recurrence", "stall", "margin", "either"]
    assert all(row["us_a_token"] > 0 < row["us_a_token_last"] for row in long.values())
    assert long["budget"]["bytes"] == pytest.approx(short["budget"]["bytes"], abs=500)
    # A passage is a number of 64 bytes, a count, and their place in a dictionary.
    assert 6000 * 100 < long["recurrence"]["bytes"] - short["recurrence"]["bytes"] < 6000 * 350
    assert long["either"]["bytes"] == pytest.approx(long["recurrence"]["bytes"], rel=0.1)
    # A state of 192 numbers for each of 125 chunks, with room for 128.
    assert 128 * 192 * 4 < long["stall"]["bytes"] < 128 * 192 * 4 + 50_000
    assert long["margin"]["bytes"] < 100_000


@pytest.mark.parametrize(
    "wrong", [{"tokens": 9}, {"tokens": 20, "repeats": 0}, {"names": "gardian", "tokens": 20}]
)
def test_what_cannot_be_measured(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        cost.detectors(**{"names": "budget", **wrong})  # type: ignore[arg-type]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--detectors", "budget,cycle(repeats=3)", "--tokens", "200", "--repeats", "1"]
    assert cost.main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["detector"] for row in found["rows"]] == ["budget", "cycle"]
    assert cost.main(["--tokens", "9"]) == 2
