"""A scorer of one's own judges where the user names it, and nowhere because a store does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sweeping import go, jsonl

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import scoring
from experiments.grid.presets import load
from experiments.store.samples.replay import with_text
from experiments.store.store import Store
from experiments.store.study import Study

SOURCE = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()

def score(output: str, gold: str) -> bool:
    return len(output) > 20

def ruled(output, gold):
    return "long enough" if len(output) > int(gold) else None

def broken(output, gold):
    return 1 / 0

def odd(output, gold):
    return 0.5

def alone(output):
    return True
"""


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module `own_scores`, not yet imported; it leaves a file when it is."""
    file = tmp_path / "own_scores.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield file
    sys.modules.pop("own_scores", None)


@pytest.fixture
def store(own_file: Path, tiny_config: Any, tmp_path: Path) -> Path:
    rows = [{"prompt": f"{n} {n}", "answer": "x"} for n in range(4)]
    file = jsonl(tmp_path / "p.jsonl", *rows)
    config = tiny_config(datasets=file, backends="full,sink", budgets="32")
    values = {**config.to_dict(), "scorer": "own_scores:score"}
    outcome, _ = go(load("demo-small", values), tmp_path / "out")
    assert outcome.counts.decoded == 8
    sys.modules.pop("own_scores")
    own_file.with_suffix(".ran").unlink()
    return tmp_path / "out"


def test_a_store_runs_no_scorer_that_it_names(store, own_file, capsys):
    assert main(["report", str(store), "--no-figures", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert {(row["n"], row["accuracy"]) for row in rows} == {(0, None)}
    assert "answers are judged by own_scores:score, which is not loaded" in " ".join(err.split())
    assert Store(store).frame()["correct"].isna().all()
    assert main(["replay", str(store), "--detector", "guardian"]) == 0
    assert main(["run", "--dataset", "easy", "--limit", "1", "--max-new-tokens", "3"]) == 0
    assert not own_file.with_suffix(".ran").exists()
    assert "own_scores" not in sys.modules


def test_asked_for_it_judges(store, own_file, capsys):
    assert main(["report", str(store), "--no-figures", "--json"]) == 0
    command = ["report", str(store), "--no-figures", "--scorer", "own_scores:score", "--json"]
    capsys.readouterr()
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "not loaded" not in err
    assert own_file.with_suffix(".ran").exists()
    study = Study.open(store).judged_by("own_scores:score")
    samples = [*with_text(study.samples([]), study.store)]
    assert [s.correct for s in samples] == [len(s.text or "") > 20 for s in samples]
    rows = {(row["backend"], row["detector"]): row for row in json.loads(out)["rows"]}
    for backend in ("full", "sink"):
        solved = sum(bool(s.correct) for s in samples if s.backend == backend)
        assert rows[backend, "none"]["accuracy"] == solved / 4
    assert main(["replay", str(store), "--scorer", "own_scores:score", "--json"]) == 0


def test_an_edited_scorer_judges_anew(store, own_file):
    before = Study.open(store).judged_by("own_scores:score").samples([])
    own_file.write_text(SOURCE.replace("> 20", "> -100"))  # another size: bytecode is not stale
    sys.modules.pop("own_scores")
    after = Study.open(store).judged_by("own_scores:score").samples([])
    assert all(sample.correct for sample in after)
    assert not all(sample.correct for sample in before)


@pytest.mark.usefixtures("own_file")
def test_any_accepted_answer_and_the_rule():
    own = scoring.loaded("own_scores:ruled")
    judged = scoring.judged("x" * 6, ("9", "5"), "own_scores:ruled", own)
    assert judged == scoring.Judgement(True, "long enough")
    assert scoring.judged("x", ("9", "5"), "own_scores:ruled", own).correct is False
    assert scoring.judged("x", "5", "own_scores:ruled").correct is None
    assert scoring.judged("x", None, "own_scores:ruled", own).correct is None
    assert scoring.loaded("exact") == {}


@pytest.mark.usefixtures("own_file")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("own_scores:missing", "AttributeError"),
        ("nowhere_at_all:score", "ModuleNotFoundError"),
        ("own_scores:alone", "TypeError"),
    ],
)
def test_a_scorer_that_cannot_be_used(path, words, capsys):
    assert main(["sweep", "--dry-run", "--scorer", path]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("own_file")
@pytest.mark.parametrize(("name", "words"), [("broken", "division by zero"), ("odd", "not float")])
def test_a_scorer_that_fails_is_named(name, words):
    path = f"own_scores:{name}"
    with pytest.raises(InvalidValue, match=f"{path}.*{words}"):
        scoring.judged("x", "5", path, scoring.loaded(path))
