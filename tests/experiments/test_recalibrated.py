"""Detectors set anew: the promise is kept on one half, everything told is of the other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_readings import counted
from recalibrated import _split, half_of, main, rate_for, recalibrated, settings

from attention.errors import InvalidValue
from experiments.cli import main as lil
from experiments.report.promise import needed
from experiments.store.study import Study

DETECTORS = ("budget", "guardian(f=20)", "cycle(outside=0)")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model's texts, of which few are solved when cut."""
    out = tmp_path_factory.mktemp("recalibrated") / "out"
    asked = ["sweep", "--preset", "demo-small", "--dataset", "medium", "--limit", "20"]
    asked += ["--backend", "full,h2o", "--budget", "24", "--max-new-tokens", "900", "--cap", "900"]
    asked += ["--detector", "guardian", "--threads", "1", "--no-figures", "--no-page"]
    assert lil([*asked, "--out", str(out)]) == 0
    return out


def test_halves_and_promises() -> None:
    assert [half_of(one) for one in ("7", "study/12", "a-3")] == ["odd", "even", "odd"]
    with pytest.raises(InvalidValue, match="ends with a number"):
        half_of("seven")
    assert rate_for(100) == 0.05
    assert rate_for(needed(0.01)) == 0.01
    assert rate_for(needed(0.01) - 1) == 0.02
    assert rate_for(10**6) == 0.005
    with pytest.raises(InvalidValue, match="29 or more"):
        rate_for(28)
    assert _split("guardian(f=100,rate=0.1),cycle") == ["guardian(f=100,rate=0.1)", "cycle"]


@pytest.mark.slow
def test_each_half_is_read_where_it_was_not_chosen(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study.open(store)
    rows = recalibrated(study, DETECTORS, 0.4)
    assert [(row["detector"], row["chosen_on"]) for row in rows] == [
        (name, half) for name in DETECTORS for half in ("odd", "even")
    ]
    every = counted(study)
    loops = sum(row["exact"] + row["counting"] + row["reworded"] for row in every)
    ended = sum(row["ended"] for row in every)
    tokens = sum(row["tokens"] for row in every)
    assert loops > 0
    assert ended > 0
    chosen = 0
    for odd, even in zip(rows[::2], rows[1::2], strict=True):
        for kind in ("default", "chosen"):
            both = [odd[kind], even[kind]]
            if None in both:
                continue
            # The two other halves are all of it, each once.
            assert sum(one["loops"] for one in both) == loops
            assert sum(one["ended"] for one in both) == ended
            assert sum(one["tokens"] for one in both) == tokens
        for row in (odd, even):
            chosen += row["chosen"] is not None
            if row["chosen"] is not None:
                assert row["on_its_half"]["high"] <= 0.4
                assert row["differs"] == (row["chosen"]["value"] != row["default"]["value"])
    assert chosen > 0

    # By hand: a budget stops what is longer; of its ladder the last that may.
    default, tried = settings(study, "budget")
    assert default.params()["tokens"] == rows[0]["default"]["value"]
    plain = study.samples([]).samples
    for row in rows:
        there = [one for one in plain if half_of(one.item_id) != row["chosen_on"]]
        for kind in ("default", "chosen"):
            if row[kind] is not None:
                assert row[kind]["tokens"] == sum(one.tokens or 0 for one in there)
    ended_by_itself = [one for one in plain if one.status == "ok"]
    for row in rows[:2]:
        here = {
            one.item_id
            for one in ended_by_itself
            if half_of(one.item_id) == row["chosen_on"] and (one.backend == "full" or one.correct)
        }
        assert len(here) == row["clean_problems"]
        value = row["chosen"]["value"]
        assert value in [one.params()["tokens"] for one in tried]
        there = [one for one in ended_by_itself if half_of(one.item_id) != row["chosen_on"]]
        stopped = [one for one in there if (one.tokens or 0) > value]
        assert row["chosen"]["stopped_ended"] == len(stopped)
        assert row["chosen"]["stopped_solved"] == sum(bool(one.correct) for one in stopped)

    capsys.readouterr()
    assert main([str(store), "--detector", "budget", "--rate", "0.4", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["rows"] == json.loads(json.dumps(rows[:2]))
    assert main([str(store), "--detector", "budget", "--rate", "0.4"]) == 0
    assert "default: tokens=2048" in capsys.readouterr().out


@pytest.mark.slow
def test_what_cannot_be_set(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--detector", "nothing"], "nothing"),
        (["--detector", "stall"], "notes of hidden states"),
        (["--rate", "2"], "rate = 2"),
        ([], "29 or more"),
    ):
        assert main([str(store), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main([str(store / "nowhere")]) == 2
    # What the cap cut is not there under a higher one, and is what matters.
    study = Study.open(store)
    longer = replace(study.config, max_new_tokens=2000, cap="2000")
    with pytest.raises(InvalidValue, match="of 40 failed or are not there"):
        recalibrated(replace(study, config=longer), DETECTORS, 0.4)
