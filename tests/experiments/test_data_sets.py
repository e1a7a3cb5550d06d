"""Problems: the reasoner's levels and local files with the columns of public data sets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from reasoner_training.tokenizer import build_tokenizer

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import data
from experiments.grid.data import ProblemChoice
from experiments.grid.data.prompts import MATH_TEMPLATE
from experiments.grid.data.sets import expand
from experiments.reasoner import problem


def _write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_level_gives_the_reasoners_problems_as_they_are() -> None:
    items = data.load("medium", "study", 3)
    assert [item.id for item in items] == [problem("medium", "study", i).id for i in range(3)]
    assert items[1].question == problem("medium", "study", 1).prompt
    assert items[1].gold == problem("medium", "study", 1).answer
    assert {(item.scorer, item.chat) for item in items} == {("exact", False)}
    assert items[1].message == items[1].question


def test_reasoner_stands_for_its_three_levels_once() -> None:
    assert expand(["reasoner", "easy"]) == ("easy", "medium", "hard")


def test_gsm8k_columns_and_its_gold_after_the_marks(tmp_path: Path) -> None:
    row = {"question": "Janet?", "answer": "16 - 3 = <<16-3=13>>13\n#### 1,018"}
    (item,) = data.load(_write(tmp_path / "g.jsonl", [row]), "study", 5)
    assert (item.question, item.gold, item.scorer) == ("Janet?", "1018", "math")
    assert item.id == "0"


def test_math_and_aime_columns(tmp_path: Path) -> None:
    rows = [
        {"problem": "P", "answer": "\\frac{1}{2}", "solution": "...", "unique_id": "t/1.json"},
        {"problem": "Q", "answer": 60, "id": "1983-1", "part": ""},
    ]
    first, second = data.load(_write(tmp_path / "m.jsonl", rows), "study", 5)
    assert (first.id, first.gold) == ("t/1.json", "\\frac{1}{2}")
    assert (second.id, second.gold) == ("1983-1", "60")


def test_capital_columns_of_the_published_aime(tmp_path: Path) -> None:
    row = {"ID": "1984-2", "Question": "Q", "Answer": "7", "Year": 1984}
    (item,) = data.load(_write(tmp_path / "a.jsonl", [row]), "study", 5)
    assert (item.id, item.question, item.gold) == ("1984-2", "Q", "7")


def test_prompts_of_ones_own_are_used_as_they_are(tmp_path: Path) -> None:
    (item,) = data.load(
        _write(tmp_path / "p.jsonl", [{"prompt": "1 1", "answer": "2"}]), "study", 5
    )
    assert (item.message, item.chat, item.scorer) == ("1 1", False, "stated")


def test_the_limit_counts_from_the_front(tmp_path: Path) -> None:
    rows = [{"prompt": str(i), "answer": "1"} for i in range(9)]
    items = data.load(_write(tmp_path / "p.jsonl", rows), "study", 4)
    assert [item.question for item in items] == ["0", "1", "2", "3"]


def test_an_offset_leaves_out_the_first(tmp_path: Path) -> None:
    rows = [{"prompt": str(i), "answer": "1"} for i in range(9)]
    lines = _write(tmp_path / "p.jsonl", rows)
    table = tmp_path / "p.csv"
    table.write_text("prompt,answer\n" + "".join(f"{i},1\n" for i in range(9)))
    for file in (lines, str(table)):
        dataset = data.load_set(file, "study", 4, ProblemChoice(offset=3))
        assert [item.question for item in dataset.items] == ["3", "4", "5", "6"]
        # They are the problems that they are without it: stored runs serve both.
        assert [item.id for item in dataset.items] == ["3", "4", "5", "6"]
        assert dataset.notices == (f"{file}: 4 of 9 problems (behind the first 3)",)
        rest = data.load_set(file, "study", None, ProblemChoice(offset=7)).items
        assert [item.question for item in rest] == ["7", "8"]
        with pytest.raises(InvalidValue, match="below 9"):
            data.load_set(file, "study", 4, ProblemChoice(offset=9))
    items = data.load_set("retold", "test", 2, ProblemChoice(offset=900)).items
    assert [item.id for item in items] == [problem("retold", "test", i).id for i in (900, 901)]
    with pytest.raises(InvalidValue, match="at most 9,998"):
        data.load_set("retold", "test", 2, ProblemChoice(offset=9_999))


def test_an_offset_is_asked_for_and_refused_beside_a_sample(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    common = ["sweep", "--dataset", "easy", "--out", str(tmp_path), "--dry-run", "--json"]
    assert main([*common, "--offset", "900", "--limit", "2", "--backend", "full"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["config"]["offset"], document["runs"]) == (900, 2)
    for words in (["--offset", "-1"], ["--offset", "3", "--sample", "2"]):
        assert main([*common, *words]) == 2
        assert "offset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"query": "a", "answer": "b"}\n', "columns"),
        ('{"question": "a"\n', "line 1"),
        ('{"question": "a", "answer": "1"}\n[1]\n', "line 2"),
        ("", "at least one problem"),
        (
            '{"question": "a", "answer": "1", "id": 1}\n{"question": "b", "answer": "1", "id": 1}',
            "id in line 2 of .*line 1 of .* has it too",
        ),
        ('{"question": 3, "answer": "1"}', "a text"),
        (r'{"question": "a\ud800", "answer": "1"}', "whole characters"),
        ('{"question": "a", "answer": ""}', "an answer"),
        ('{"question": "a", "answer": true}', "answer in line 1 .*True.*an answer"),
        ('{"question": "a", "answer": []}', "an answer"),
        ('{"question": "a", "answer": ["1", null]}', "an answer"),
        ('{"question": "a", "answer": "1", "answer": "2"}', "line 1 .*'answer' stands in it twice"),
        ('{"question": "a", "answer": "1", "id": true}', "id in line 1"),
        ('{"question": "a", "answer": "work ####  "}', "an answer"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidValue, match=words):
        data.load(str(path), "study", 5)


def test_a_name_nobody_knows_suggests_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="did you mean 'gsm8k'"):
        data.load("gsm8", "study", 1)
    _write(tmp_path / "problems.jsonl", [{"prompt": "1", "answer": "1"}])
    with pytest.raises(InvalidValue, match=r"problems\.jsonl"):
        data.load(str(tmp_path / "problem.jsonl"), "study", 1)


def test_without_the_package_a_hub_set_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InvalidValue, match=r"`scripts/setup eval` installs it"):
        data.load("math500", "study", 1)


def test_the_hubs_rows_go_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows(list[dict[str, Any]]):
        def select(self, which: range) -> list[dict[str, Any]]:
            return [self[i] for i in which]

    class Fake:
        @staticmethod
        def load_dataset(repository: str, configuration: str | None, split: str) -> Rows:
            assert (repository, configuration, split) == ("openai/gsm8k", "main", "test")
            return Rows([{"question": f"q{i}", "answer": f"#### {i}"} for i in range(9)])

    monkeypatch.setitem(__import__("sys").modules, "datasets", Fake)
    items = data.load("gsm8k", "study", 2)
    assert [(item.question, item.gold) for item in items] == [("q0", "0"), ("q1", "1")]


def test_a_prompt_goes_through_the_chat_template_where_there_is_one() -> None:
    tokenizer = build_tokenizer()
    item = data.Item("0", "?", "3", "math", MATH_TEMPLATE.format(problem="1 plus 2 ?"), True)
    plain = item.prompt_ids(tokenizer)
    assert plain == tokenizer(MATH_TEMPLATE.format(problem="1 plus 2 ?"))["input_ids"]
    tokenizer.chat_template = "{% for m in messages %}</think>{{ m.content }}{% endfor %}<think>"
    think, answer = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    assert item.prompt_ids(tokenizer) == [answer, *plain, think]
    raw = data.Item("0", "?", "3", "exact", "1 plus 2 ?", False)
    assert raw.prompt_ids(tokenizer) == tokenizer("1 plus 2 ?")["input_ids"]


PUBLIC = Path(os.environ.get("LIL_PUBLIC_DATA", "not given"))


@pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason="LIL_PUBLIC_DATA names no folder with copies of the public data sets",
)
@pytest.mark.parametrize(
    ("file", "count"),
    [("gsm8k_test.jsonl", 1319), ("math500.jsonl", 500), ("aime_1983_2024.jsonl", 933)],
)
def test_the_public_sets_load_whole(file: str, count: int) -> None:
    items = data.load(str(PUBLIC / file), "study", 10_000)
    assert len(items) == count
    assert all("####" not in item.gold and item.gold for item in items)
