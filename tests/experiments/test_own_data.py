"""Data of one's own: chats, several accepted answers, none, CSV, a limit that takes fewer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reasoner_training.tokenizer import build_tokenizer
from sweeping import go

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import data
from experiments.grid.config import Config
from experiments.grid.data import ProblemChoice
from experiments.report import measures
from experiments.report.tables.backends import main_grids
from experiments.store.store import Store
from experiments.store.study import Study

TEMPLATE = (
    "{% for one in messages %}[{{ one.role }}] {{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = [{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "3"}]


def _file(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _load(file: str, **wanted: Any) -> data.DataSet:
    return data.load_set(file, "study", wanted.pop("limit", None), ProblemChoice(**wanted))


# ---------------------------------------------------------------- chats


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    turns = [*CHAT, {"role": "user", "content": "4 5"}]
    file = _file(tmp_path / "chat.jsonl", {"messages": turns, "answer": "9"})
    (item,) = _load(file).items
    assert (item.question, item.gold, item.scorer) == ("4 5", "9", "stated")
    tokenizer = build_tokenizer()
    with pytest.raises(InvalidValue, match="a chat template for a column of messages"):
        item.prompt_ids(tokenizer)
    tokenizer.chat_template = TEMPLATE
    expected = "[user] 1 2\n[assistant] 3\n[user] 4 5\n[assistant]"
    assert item.prompt_ids(tokenizer) == tokenizer(expected, add_special_tokens=False)["input_ids"]
    (item,) = _load(file, system="Be kind.").items
    ids = tokenizer("[system] Be kind.\n" + expected, add_special_tokens=False)["input_ids"]
    assert item.prompt_ids(tokenizer) == ids


def test_a_column_of_another_name_may_hold_messages(tmp_path: Path) -> None:
    file = _file(tmp_path / "c.jsonl", {"talk": CHAT[:1], "gold": "3"})
    (item,) = _load(file, columns={"messages": "talk", "answer": "gold"}).items
    assert item.messages == (("user", "1 2"),)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "a list of"),
        ([], "a list of"),
        (CHAT, "a last message that the model answers"),
        ([{"role": "user"}], "message 1 of messages in line 1"),
        ([{"role": "user", "content": ["a"]}], "both texts"),
        ([{"role": "user", "content": "a", "name": "b"}], "both texts"),
    ],
)
def test_messages_that_are_no_chat(tmp_path: Path, messages: object, words: str) -> None:
    file = _file(tmp_path / "c.jsonl", {"messages": messages, "answer": "3"})
    with pytest.raises(InvalidValue, match=words):
        _load(file)


def test_a_chat_has_one_system_prompt_and_no_template(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be kind."}, CHAT[0]]
    file = _file(tmp_path / "c.jsonl", {"messages": turns, "answer": "3"})
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    with pytest.raises(InvalidValue, match="system prompt of their own"):
        _load(file, system="Be brief.").items[0].prompt_ids(tokenizer)
    with pytest.raises(InvalidValue, match="used as they are"):
        _load(file, template="{problem}", prompt_template="t.txt")
    tokenizer.chat_template = "{{ raise_exception('users alone') }}"
    with pytest.raises(InvalidValue, match=r"messages that .* takes"):
        _load(file).items[0].prompt_ids(tokenizer)


# ---------------------------------------------------------------- answers


def test_any_of_several_answers_will_do(tmp_path: Path) -> None:
    file = _file(tmp_path / "m.jsonl", {"prompt": "1", "answer": ["7", 8, "7"]})
    (item,) = _load(file).items
    assert (item.gold, item.scorer) == (("7", "8"), "stated")


def test_problems_without_an_answer_are_not_judged(tmp_path: Path) -> None:
    half = _file(tmp_path / "half.jsonl", {"prompt": "1", "answer": "2"}, {"prompt": "3"})
    none = _file(tmp_path / "none.jsonl", {"question": "1"}, {"question": "2", "answer": None})
    dataset = _load(half.replace("half", "none"))
    assert [(item.gold, item.scorer) for item in dataset.items] == [(None, "none")] * 2
    assert dataset.notices == (
        f"{none}: no problem has an answer; of those lengths alone are measured",
    )
    with pytest.raises(InvalidValue, match=f"columns of {none}"):
        _load(none, scorer="exact")
    with pytest.raises(InvalidValue, match="answer"):
        _load(half, scorer="exact")
    null = _file(tmp_path / "null.jsonl", {"prompt": "1", "answer": None})
    assert _load(null, scorer="exact").items[0].scorer == "none"
    (item, _) = _load(half, scorer="none").items
    assert (item.gold, item.scorer) == (None, "none")
    assert not _load(half, scorer="none").notices


def test_a_problem_may_lack_the_answer_that_others_have(tmp_path: Path) -> None:
    rows = [{"prompt": "1", "answer": "2"}, {"prompt": "3", "answer": None}]
    dataset = _load(_file(tmp_path / "p.jsonl", *rows))
    assert [(item.gold, item.scorer) for item in dataset.items] == [("2", "stated"), (None, "none")]
    assert dataset.notices[0].endswith(
        "1 problems lack an answer; of those lengths alone are measured"
    )


@pytest.fixture
def swept(tiny_config: Callable[..., Config], tmp_path: Path) -> Callable[..., Study]:
    def run(rows: list[dict[str, Any]], **overrides: Any) -> Study:
        file = _file(tmp_path / "own.jsonl", *rows)
        values = {"datasets": file, "backends": "full,sink", "budgets": "32", **overrides}
        outcome, _ = go(tiny_config(**values), tmp_path / "out")
        return Study.open(tmp_path / "out", outcome.sweep)

    return run


def test_lengths_alone_are_measured_and_shown(swept, tmp_path, capsys):
    study = swept([{"prompt": f"{n} {n}"} for n in range(4)])
    rows = measures.summarise(study.samples([]), 0)
    assert {row.backend for row in rows} == {"full", "sink"}
    for row in rows:
        assert (row.n, row.samples, row.accuracy.estimate, row.accuracy_change.estimate) == (
            0,
            4,
            None,
            None,
        )
        assert row.mean_tokens.estimate is not None
        assert (row.keys_read_per_solved, row.solved_by_both) == (None, 0)
    assert main_grids(rows)
    assert Store(tmp_path / "out").frame()["correct"].isna().all()
    assert main(["report", str(tmp_path / "out"), "--no-figures", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["accuracy"] for row in document["rows"]} == {None}
    finding = document["manifest"]["headline"]
    for word in ("accuracy", "solved", "answers", "per solved"):
        assert word not in finding.replace("no answer", ""), finding


def test_several_answers_are_kept_and_judged(swept):
    study = swept([{"prompt": f"{n}", "answer": ["1", "2"]} for n in range(2)])
    again = Study.open(study.folder)
    assert {item.gold for of in again.plan.items.values() for item in of} == {("1", "2")}
    assert {sample.correct for sample in again.samples([])} <= {True, False}


# ---------------------------------------------------------------- files


def test_csv_files_have_the_same_columns(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text('id,prompt,answer\na,"1, ""2""\n3",4\n\nb,5,\n', encoding="utf-8-sig")
    first, second = _load(str(file)).items
    assert (first.id, first.question, first.gold) == ("a", '1, "2"\n3', "4")
    assert (second.id, second.question, second.gold) == ("b", "5", None)
    file.write_text("prompt,answer\n" + "1 " * 100_000 + ",4\n")
    assert len(_load(str(file)).items[0].question) > 131_072


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prompt,answer\n1,2\n3\n", "line 3 of .*1 cells.*2 cells, as many"),
        ("prompt,prompt\n1,2\n", "line 1 of .*a header"),
        ("prompt,\n1,2\n", "line 1 of .*a header"),
        ('prompt,answer\n"1,2\n', "line 2 of .*CSV"),
        ("prompt,answer\n", "at least one problem"),
        ("id,prompt,answer\nx,1,2\nx,3,4\n", "id in line 3 of .*line 2 of"),
    ],
)
def test_a_csv_file_that_cannot_be_used(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "p.csv"
    file.write_text(content)
    with pytest.raises(InvalidValue, match=words):
        _load(str(file))


def test_bytes_that_are_no_text_have_a_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"prompt": "1", "answer": "2"}\n{"prompt": "\xff", "answer": "2"}\n')
    with pytest.raises(InvalidValue, match=r"line 2 of .*text in UTF-8"):
        _load(str(file))


def test_a_limit_that_takes_fewer_is_said(tmp_path: Path, capsys, tiny_model: Path) -> None:
    file = _file(tmp_path / "p.jsonl", *({"prompt": f"{n}", "answer": "1"} for n in range(30)))
    assert _load(file, limit=20).notices == (
        f"{file}: 20 of 30 problems (the first; --limit all takes all)",
    )
    assert _load(file, sample=20).notices == (f"{file}: 20 of 30 problems (at random)",)
    assert not _load(file, limit=30).notices
    assert _load(file, limit=20).about()["of"] == 30
    command = ["--model", str(tiny_model), "--dataset", file, "--limit", "2", "--json"]
    assert main(["sweep", *command, "--dry-run", "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "2 of 30 problems" in json.loads(out)["notices"][0]
    assert "2 of 30 problems" in " ".join(err.split())
