"""A prompt with words that a model does not know is said to have them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.cli import main
from experiments.grid.data.prompts import unknown_words
from experiments.reasoner import problem

CapFd = pytest.CaptureFixture[str]
ASKED = "hold words that the model does not know (<unk>)"


def test_of_which_prompts() -> None:
    of = {"unk_token_id": 7, "unk_token": "<unk>", "bos_token_id": 1, "eos_token_id": 2}
    (said,) = unknown_words(SimpleNamespace(**of), [[1, 7], [1, 3], [7, 7]], "mine")
    assert said.startswith(f"mine: 2 of 3 prompts {ASKED}")
    assert not unknown_words(SimpleNamespace(**of), [[1, 3]], "mine")
    for none in ({"unk_token_id": None}, {"bos_token_id": 7}, {"eos_token_id": 7}):
        assert not unknown_words(SimpleNamespace(**of | none), [[1, 7]], "mine")


def test_a_sweep_and_a_run_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CapFd
) -> None:
    monkeypatch.chdir(tmp_path)
    one = problem("easy", "study", 0)
    known = {"question": one.prompt.strip(), "answer": "5"}
    Path("mine.jsonl").write_text(json.dumps(known) + "\n")
    Path("known.txt").write_text("{problem}\n\n\n")
    common = ["--dataset", "mine.jsonl", "--backend", "full", "--max-new-tokens", "4"]
    quiet = ["--scorer", "exact", "--no-figures", "--no-page", "--detector", "none"]
    template = ["--prompt-template", "known.txt"]
    for more, says in (([], True), (template, False)):
        assert main(["sweep", *common, *quiet, "--out", f"out{says}", *more]) == 0
        assert (ASKED in capfd.readouterr().err) == says
    typed = ["run", "--max-new-tokens", "2", "--prompt"]
    assert main([*typed, "Explain it."]) == 0
    assert ASKED in capfd.readouterr().err
    assert main([*typed, one.prompt]) == 0
    assert ASKED not in capfd.readouterr().err
