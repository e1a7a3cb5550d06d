"""`lil show`: one run of a store, found by its id or by what it is."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from sweeping import Make, go, json_of, jsonl

from experiments.cli import main
from experiments.store.samples.replay import with_text
from experiments.store.store import Record, Store
from experiments.store.study import Study


def _values(folder: Path) -> dict[str, object]:
    rows = [{"prompt": f"{n} {n} " * (n + 1), "answer": ["7", str(n)]} for n in range(3)]
    return {
        "datasets": jsonl(folder / "p.jsonl", *rows),
        "scorer": "exact",
        "backends": "full,h2o,sink",
        "budgets": "32,48",
        "max_new_tokens": 60,
        "detectors": "guardian,cycle:answer",
        "detector_params": {
            "guardian": {"f": 10, "rate": 0.6},
            "cycle": {"min_tokens": 4, "outside": 0},
        },
    }


@pytest.fixture(scope="module")
def store(tiny_config: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    go(tiny_config(**_values(folder)), folder / "out")
    return folder / "out"


def test_it_shows_what_the_samples_of_a_report_say(store, capsys):
    study = Study.open(store)
    samples = [*with_text(study.samples(study.detectors), study.store)]
    assert any(sample.stopped_at for sample in samples), "no detector fires in this store"
    for run in study.runs():
        shown = json_of(capsys, "show", store, run.id[:12])
        backend, budget = run.configuration.backend["name"], run.configuration.budget
        words = (run.item_id, backend, *([budget] if budget else []))
        assert shown == json_of(capsys, "show", store, *words)
        plain, *watched = (
            sample
            for sample in samples
            if (sample.item_id, sample.backend, sample.budget) == (run.item_id, backend, budget)
        )
        for name in ("tokens", "status", "correct", "text"):
            assert shown[name] == getattr(plain, name)
        assert shown["gold"] == ["7", run.item_id]
        assert shown["cap"] == study.cap(run)
        assert shown["costs"]["keys_read"] == plain.keys_read
        assert [(row["fired_at"], row["tokens"], row["correct"]) for row in shown["detectors"]] == [
            (sample.stopped_at, sample.tokens, sample.correct) for sample in watched
        ]
        assert (shown["full"] is None) is run.configuration.is_full


def test_why_an_answer_counts_as_it_does(store, tiny_config, tmp_path, capsys, monkeypatch):
    """Read at a smaller cap: two boxes are left, what comes behind the cap would be right."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    go(tiny_config(**_values(store.parent) | {"max_new_tokens": 5}), copy)
    runs = [run for run in Study.open(copy).runs() if run.configuration.is_full]
    run = max(runs, key=lambda run: Store(copy).get(run.id).meta["tokens"])
    trace = Store(copy).get(run.id).trace()
    assert trace.tokens > 5
    pieces = [b""] * trace.tokens
    pieces[1], pieces[3], pieces[-1] = rb"\boxed{8}", rb"\boxed{9}", rb"\boxed{7}"
    changed = dataclasses.replace(trace, pieces=tuple(pieces), finish="length")
    monkeypatch.setattr(Record, "values", lambda _: changed.to_dict())
    shown = json_of(capsys, "show", copy, run.id)
    assert (shown["tokens"], shown["stored_tokens"], shown["status"]) == (5, trace.tokens, "capped")
    assert (shown["answer"], shown["correct"]) == ("9", False)
    assert main(["show", str(copy), run.id]) == 0
    out = capsys.readouterr().out
    gold = f"gold 7 or {run.item_id}"
    assert f"answer    9 by the last \\boxed{{}}, {gold}, scorer exact: wrong" in out
    assert (
        f"because   '9' does not equal '7' or '{run.item_id}' character by character; cut at 5 "
        "tokens\n"
    ) in out
    assert f"sweep     {min((copy / 'sweeps').iterdir()).stem}" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("h2p",), "did you mean 'h2o'"),
        (("0", "h2o"), "2 are: "),
        (("0",), "5 are"),  # a problem before the beginning of an id
        (("0", "h2o", "33"), "run = '33'"),
        ((), "by id or by what it is"),
        (("0", "full", "48"), "run = '0 full 48'"),
    ],
)
def test_words_that_mean_no_run_or_several(store, capsys, words, message):
    assert main(["show", str(store), *words]) == 2
    assert message in capsys.readouterr().err


def test_settings_of_one_method_and_penalties_are_distinguished(tiny_config, tmp_path, capsys):
    values = _values(tmp_path) | {
        "backends": "full,quest(page=4),quest(page=8)",
        "budgets": "32",
        "penalties": "none,presence",
        "limit": 1,
        "max_new_tokens": 4,
    }
    go(tiny_config(**values), tmp_path / "out")
    out = str(tmp_path / "out")
    assert main(["show", out, "0", "quest"]) == 2
    message = capsys.readouterr().err
    for part in ("page=4", "page=8", "none", "presence"):
        assert f" {part}" in message
    for words in (("quest(page=8)", "none"), ("quest", "page=8", "none"), ("none", "page=8")):
        run = json_of(capsys, "show", out, *words)
        assert (run["backend_params"]["page"], run["penalties"]) == (8, [])
    assert main(["show", out, "quest(page=9)"]) == 2
    assert "run = 'quest(page=9)'" in capsys.readouterr().err


def test_long_texts_are_cut_without_whole(store, capsys, monkeypatch):
    monkeypatch.setattr("experiments.cli.console.SHOWN", 8)
    run = next(iter(Study.open(store).runs()))
    text = Store(store).get(run.id).trace().text
    assert len(text) > 8
    assert main(["show", str(store), run.id]) == 0
    out = capsys.readouterr().out
    assert f"[{len(text) - 8:,} characters more: --whole]" in out
    assert main(["show", str(store), run.id, "--whole"]) == 0
    assert "--whole" not in capsys.readouterr().out


def test_a_run_that_is_missing(store, tmp_path, capsys):
    shutil.copytree(store / "sweeps", tmp_path / "copy" / "sweeps")
    shown = json_of(capsys, "show", tmp_path / "copy", "0", "full")
    assert shown["status"] == "missing"
    assert (shown["tokens"], shown["text"], shown["correct"]) == (None, None, None)
    assert main(["show", str(tmp_path / "copy"), "0", "full"]) == 0
    assert "status    missing" in capsys.readouterr().out
