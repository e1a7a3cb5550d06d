"""Texts for a person to judge: those that count as unsolved, and what was found in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from unsolved_texts import drawn, main, told, unsolved

from experiments.cli import main as lil
from experiments.reasoner import problem
from experiments.store.study import Study


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Full attention's and h2o's texts; half of the accepted answers are wrong."""
    file, out = tmp_path / "mine.jsonl", tmp_path / "out"
    made = [problem("easy", "study", at) for at in range(6)]
    lines = [
        {"id": f"p{at}", "prompt": one.prompt, "answer": one.answer if at % 2 else "977"}
        for at, one in enumerate(made)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ["sweep", "--preset", "demo-small", "--dataset", str(file), "--scorer", "exact"]
    asked += ["--backend", "full,h2o", "--budget", "8", "--max-new-tokens", "600", "--cap", "600"]
    asked += ["--detector", "none", "--threads", "1", "--no-figures", "--no-page"]
    assert lil([*asked, "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_what_a_person_reads(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = Study.open(store)
    wrong, of = unsolved(study)
    assert of == 6
    assert {one.item_id for one in wrong} == {"p0", "p2", "p4"}
    rows = list(told(study, wrong))
    for row, sample in zip(rows, wrong, strict=True):
        record = study.store.get(str(sample.record))
        assert record is not None
        assert record.trace().text.endswith(row["end"])
        assert 0 < len(row["end"]) <= 400
        assert (row["gold"], row["gold_in_text"], row["stated_right"]) == ("977", False, False)
        assert row["answer"] == row["stated"] == sample.answer
        assert row["rule"] == row["stated_rule"] == "the last \\boxed{}"
        assert row["question"].strip() in record.trace().prompt_bytes.decode()
    assert [one.item_id for one in drawn(wrong, 2, 1)] == [
        one.item_id for one in drawn(wrong, 2, 1)
    ]
    assert len({tuple(one.item_id for one in drawn(wrong, 1, seed)) for seed in range(20)}) == 3

    capsys.readouterr()
    assert main([str(store), "--runs", "2", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["judged"], document["unsolved"], len(document["runs"])) == (6, 3, 2)
    assert main([str(store)]) == 0
    printed = capsys.readouterr().out
    assert "3 of 3 unsolved runs, of 6 that are judged" in printed
    assert printed.count("--- gold: 977") == 3
    assert main([str(store), "--runs", "0"]) == 2
    assert main([str(store / "nowhere")]) == 2
