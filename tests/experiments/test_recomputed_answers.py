"""Which answers count, a second time: the checking program's own scorers, and stores they judge."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from answer_pairs import BOXES, DIFFERENT, EQUAL
from recomputing import answers
from recomputing.compare import Comparison
from recomputing.samples import _called
from stated_answers import OUTPUTS, Output

from experiments.cli import main
from experiments.reasoner import problem


@pytest.mark.parametrize("one", OUTPUTS, ids=lambda one: one.text[:40].replace("\n", " "))
def test_a_reader_would_say_the_same(one: Output) -> None:
    assert answers.solved("stated", one.text, one.gold, one.ended) is one.right
    found = answers.stated(one.text, bool(answers.number(one.gold)), one.ended)
    assert (found is None) == (one.rule is None)
    if found is not None:
        assert str(one.rule) in f'the last "{found[1]}"'


def test_one_of_several_answers_is_enough() -> None:
    assert answers.solved(
        "stated", "It is fifteen. The answer is fifteen.", ["15", "fifteen"], True
    )
    assert answers.solved("exact", "\\boxed{b}", ["a", "b"], True)
    assert not answers.solved("exact", "\\boxed{1.0}", "1", True)
    assert answers.solved("math", "\\boxed{1.0}", "1", True)
    for scorer, gold in (("own:scorer", "1"), ("stated", None)):
        with pytest.raises(NotImplementedError):
            answers.solved(scorer, "1", gold, True)


def test_numbers_and_boxes() -> None:
    assert answers.number("$1,234.50 dollars") == {Fraction("1234.5")}
    assert answers.number("25%") == {Fraction(25), Fraction(1, 4)}
    assert answers.number("3x") == answers.number("1,00") == answers.number("3 or 4") == set()
    for text, right in BOXES[:6]:
        assert answers.solved("math", text, "18", False) is right


def test_mathematics_that_is_no_number() -> None:
    pytest.importorskip("math_verify", reason="needs the extra `eval` (math-verify)")
    assert all(answers.same_mathematics(answer, gold) for gold, answer in EQUAL)
    assert not any(answers.same_mathematics(answer, gold) for gold, answer in DIFFERENT)


def test_what_files_of_problems_are_called() -> None:
    files = {"easy", "/a/b/one.jsonl", "/a/c/one.jsonl", "two.csv"}
    assert _called(files) == {
        "easy": "easy", "/a/b/one.jsonl": "b/one", "/a/c/one.jsonl": "c/one", "two.csv": "two"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("scorer", ["auto", "math"])
def test_every_number_of_a_sweep_over_a_file(
    scorer: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jsonl"
    made = [problem("easy", "study", at) for at in range(6)]
    lines = [{"prompt": one.prompt, "answer": [one.answer, "none"]} for one in made]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out"
    asked = ["sweep", "--preset", "demo-small", "--dataset", str(file), "--scorer", scorer]
    asked += ["--backend", "full,h2o,h2o(decay=0.9)", "--budget", "48,96"]
    asked += ["--detector", "guardian(f=60),guardian(f=30),budget(tokens=100)"]
    asked += ["--max-new-tokens", "300", "--cap", "300", "--threads", "1", "--out", str(out)]
    assert main([*asked, "--no-figures", "--no-page", "--json"]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    rows = document["rows"]
    assert rows[0]["dataset"] == "mine"
    solved = [round(row["accuracy"] * row["n"]) for row in rows]
    assert max(solved) > 0
    assert min(solved) < 6
    comparison = Comparison(out)
    comparison.compare(rows, document["pooled"])
    comparison.compare_pooled(document["stopping"], rows)
    assert comparison.wrong == []
    # Two lines of two budgets each.
    assert {row["cheaper"]["of"] for row in rows if row["cheaper"]} == {2}
    assert document["stopping"][0]["cells"] == 4
    rows[0]["solved_lost"] = (rows[0]["solved_lost"] or 0) + 1
    rows[-1]["accuracy"] += 0.01
    comparison.compare(rows, document["pooled"])
    assert len(comparison.wrong) >= 2
