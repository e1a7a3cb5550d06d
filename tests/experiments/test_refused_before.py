"""What cannot end well is refused before the work, with nothing left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from experiments.chopper_training import require_fifth
from experiments.cli import main
from experiments.grid import scoring
from experiments.sweep import sweep

SMALL = Path(__file__).parent / "data" / "small"


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "run", lambda *_, **__: pytest.fail("something was decoded"))


def _problems(count: int) -> list[str]:
    rows = [{"question": "Anna has 3.", "answer": "3"}] * count
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["--dataset", "q.jsonl", "--scorer", "exact", "--threads", "1"]


def _refused(command: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(os.listdir())
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("lil: error") == 1
    assert word in said.err
    assert sorted(os.listdir()) == before


def test_a_chopper_without_a_fifth_problem(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--model", str(tiny_model), *_problems(8)]
    asked += ["--limit", "4", "--backend", "full"]
    _refused(["chopper", "train", *asked], "five or more", capsys)
    _refused(["chopper", "train", "--from", str(SMALL)], "problems = 4", capsys)
    require_fifth({"few": 4, "enough": 5})


@pytest.mark.parametrize("dataset", ["q.jsonl", "gsm8k"])
def test_a_dry_run_without_the_judge_of_mathematics(
    dataset: str,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _problems(2)
    monkeypatch.setattr(scoring.importlib.util, "find_spec", lambda _name: None)
    asked = ["--model", str(tiny_model), "--dataset", dataset]
    _refused(["sweep", "--dry-run", *asked], "math-verify", capsys)


def test_a_page_that_is_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("page").mkdir()
    _refused(["report", str(SMALL), "--page", "page"], "page = 'page'", capsys)


@pytest.mark.parametrize("flag", ["--out", "--page", "--figures"])
def test_an_empty_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(["sweep", flag, ""], f"{flag[2:]} = ''", capsys)
