"""Problems: levels, files and the hub; columns, prompts, chats, samples and labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
from reasoner_training.tokenizer import build_tokenizer
from sweeping import Make, go, jsonl, prepare
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from attention.errors import InvalidValue
from experiments.grid import data
from experiments.grid.config import Config
from experiments.grid.data import ProblemChoice
from experiments.grid.data.prompts import MATH_TEMPLATE
from experiments.grid.data.sets import expand, labels
from experiments.grid.presets import load
from experiments.grid.scoring import Judgement
from experiments.reasoner import problem
from experiments.store.study import Study

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = [{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "3"}]
GSM8K = {
    "question": "Natalia sold 48 clips in April, and half as many in May. How many in all?",
    "answer": "In May <<48/2=24>>24 clips.\nIn all <<48+24=72>>72 clips.\n#### 72",
}
MATH = {
    "problem": "Convert the point $(0,3)$ to polar coordinates.",
    "solution": "First $r = \\boxed{3}$, then $\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}.$",
    "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
    "unique_id": "test/precalculus/807.json",
}
AIME = {"ID": "1983-1", "Year": 1983, "Question": "Find $\\log_zw$.", "Answer": "060", "Part": None}


def _load(file: str, **choice: Any) -> data.DataSet:
    return data.load_set(file, "study", choice.pop("limit", None), ProblemChoice(**choice))


def _item(tmp_path: Path, row: dict[str, Any], **choice: Any) -> data.Item:
    (item,) = _load(jsonl(tmp_path / "rows.jsonl", row), **choice).items
    return item


def _configured(path: Path, **keys: Any) -> tuple[data.Item, ...]:
    (dataset,) = data.load_all(load("demo-small", {"datasets": str(path), **keys})).values()
    return dataset.items


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    rows = [
        {"q": f"What is {{{i}}} + 1?", "gold": str(i + 1), "hint": f"count {i}", "nr": f"n{i}"}
        for i in range(12)
    ]
    return Path(jsonl(tmp_path / "mine.jsonl", *rows))


# ---------------------------------------------------------------- forms of problems


def test_a_level_gives_the_reasoners_problems_as_they_are() -> None:
    items = data.load_set("medium", "study", 3).items
    assert [item.id for item in items] == [problem("medium", "study", i).id for i in range(3)]
    assert items[1].question == problem("medium", "study", 1).prompt
    assert items[1].gold == problem("medium", "study", 1).answer
    assert {(item.scorer, item.chat) for item in items} == {("exact", False)}
    assert items[1].message == items[1].question


@pytest.mark.parametrize(
    ("row", "gold", "id_"),
    [
        (GSM8K, "72", "0"),
        (MATH, "\\left( 3, \\frac{\\pi}{2} \\right)", "test/precalculus/807.json"),
        (AIME, "060", "1983-1"),
        ({"question": "Q", "answer": "72"}, "72", "0"),
        ({"question": "Q", "answer": 72}, "72", "0"),
        ({"problem": "Q", "answer": "1,000"}, "1,000", "0"),
        ({"problem": "Q", "solution": "so \\boxed{5}, no: \\boxed{\\frac12}."}, "\\frac12", "0"),
        ({"problem": "Q", "solution": "so 5.\n#### 5"}, "5", "0"),
        ({"question": "Q", "answer": "We get $\\boxed{5}$ and\nare done."}, "5", "0"),
        ({"question": "Q", "answer": "$\\boxed{5}$\n#### 5.0"}, "5.0", "0"),
        ({"question": "Q", "solution": "of another kind", "answer": "5"}, "5", "0"),
        ({"question": "Q", "answer": "on both.\n#### (3, 8)"}, "(3, 8)", "0"),
        ({"question": "Q", "answer": "more.\n#### 1,75"}, "1,75", "0"),
        ({"question": "Q", "answer": 5e-7}, "0.0000005", "0"),
        ({"question": "Q", "answer": 3e16}, "30000000000000000", "0"),
        ({"question": "Q", "prompt": None, "answer": "5"}, "5", "0"),
    ],
)
def test_forms_that_people_know(row: dict[str, Any], gold: str, id_: str, tmp_path: Path) -> None:
    dataset = _load(jsonl(tmp_path / "rows.jsonl", row))
    (item,) = dataset.items
    assert (item.gold, item.id, item.scorer) == (gold, id_, "math")
    assert dataset.about()["template"] == MATH_TEMPLATE
    assert item.message == MATH_TEMPLATE.format(problem=item.question)


def test_what_is_meant_may_be_named(tmp_path: Path) -> None:
    both = {"question": "A", "prompt": "B", "answer": "5"}
    assert _item(tmp_path, both, columns={"prompt": "prompt"}).question == "B"
    assert _item(tmp_path, {"problem": "Q", "solution": "it is 5"}, scorer="none").gold is None
    code = _item(tmp_path, {"prompt": "Q", "answer": "1\n2"})
    assert (code.gold, code.scorer) == ("1\n2", "stated")
    assert _item(tmp_path, {"prompt": "Q \\boxed{}", "answer": "3/4"}).scorer == "math"


_NO_ANSWER = "an answer"
REFUSED = [
    ({"question": "A", "prompt": "B", "answer": "5"}, "one column that asks, .*question=question"),
    ({"question": "A", "problem": "B", "answer": "5"}, "question and problem"),
    ({"question": "Q", "answer": "\\boxed{5}\n#### 6"}, "'6' stands behind ####, '5' in the last"),
    ({"question": "Q", "answer": "May: 24.\nIn all: 72."}, "answer in line 3 .*answer alone"),
    ({"problem": "Q", "solution": "it is 5"}, r"solution in line 3 .*\\boxed{} or behind ####"),
    ({"problem": "Q", "solution": "\\boxed{5"}, "solution in line 3"),
    ({"messages": "hello", "answer": "3"}, "a list of"),
    ({"messages": CHAT, "answer": "3"}, "a last message that the model answers"),
    ({"messages": [{"role": "user"}], "answer": "3"}, "message 1 of messages in line 3"),
    ({"messages": [{"role": "user", "content": ["a"]}], "answer": "3"}, "both texts"),
    ('{"question": "a"', "line 3"),
    ("[1]", "line 3"),
    ('{"question": 3, "answer": "1"}', "a text"),
    ('{"prompt": " ", "answer": "1"}', "a text"),
    ('{"question": "a", "answer": ""}', _NO_ANSWER),
    ('{"question": "a", "answer": true}', "answer in line 3 .*True.*an answer"),
    ('{"question": "a", "answer": []}', _NO_ANSWER),
    ('{"question": "a", "answer": ["1", null]}', _NO_ANSWER),
    ('{"question": "a", "answer": "work ####  "}', _NO_ANSWER),
    ('{"prompt": "a", "answer": NaN}', _NO_ANSWER),
    ('{"question": "a", "answer": "1", "answer": "2"}', "'answer' stands in it twice"),
    ('{"prompt": "a", "answer": "1", "id": "0"}', "id in line 3 of .*line 1 of .* has it too"),
    ('{"question": "a", "answer": "1", "id": true}', "id in line 3"),
    ('{"prompt": "a", "answer": "1", "id": "' + "x" * 201 + '"}', "200 printable"),
    ('{"prompt": "a", "answer": "1", "id": "a\\nb"}', "200 printable"),
    ('{"prompt": "\\ud800", "answer": "1"}', "whole characters"),
    ('{"prompt": "a", "answer": ' + "9" * 5000 + "}", "digits"),
    ("[" * 3000, "too many brackets"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_a_line_that_cannot_be_used_is_named(line: Any, words: str, tmp_path: Path) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n\n' + text + "\n")
    with pytest.raises(InvalidValue, match=words) as caught:
        data.load_set(str(path), "study", None)
    assert len(str(caught.value)) < 600
    str(caught.value).encode()


def test_csv_files_have_the_same_columns(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text('id,prompt,answer\na,"1, ""2""\n3",4\n\nb,5,\nc,6,NaN\n', encoding="utf-8-sig")
    first, second, third = _load(str(file)).items
    assert third.gold is None
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


def test_any_of_several_answers_will_do(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "m.jsonl", {"prompt": "1", "answer": ["7", 8, "7"]})
    (item,) = _load(file).items
    assert (item.gold, item.scorer) == (("7", "8"), "stated")


def test_problems_without_an_answer_are_not_judged(tmp_path: Path) -> None:
    half = jsonl(tmp_path / "half.jsonl", {"prompt": "1", "answer": "2"}, {"prompt": "3"})
    none = jsonl(tmp_path / "none.jsonl", {"question": "1"}, {"question": "2", "answer": None})
    dataset = _load(half.replace("half", "none"))
    assert [(item.gold, item.scorer) for item in dataset.items] == [(None, "none")] * 2
    assert dataset.notices == (
        f"{none}: no problem has an answer; of those lengths alone are measured",
    )
    lacking = _load(half)
    assert [(item.gold, item.scorer) for item in lacking.items] == [("2", "stated"), (None, "none")]
    assert len(lacking.notices) == 1
    with pytest.raises(InvalidValue, match=f"columns of {none}"):
        _load(none, scorer="exact")
    with pytest.raises(InvalidValue, match="answer"):
        _load(half, scorer="exact")
    null = jsonl(tmp_path / "null.jsonl", {"prompt": "1", "answer": None})
    assert _load(null, scorer="exact").items[0].scorer == "none"
    (item, _) = _load(half, scorer="none").items
    assert (item.gold, item.scorer) == (None, "none")
    assert not _load(half, scorer="none").notices


# ---------------------------------------------------------------- which problems


def test_an_offset_leaves_out_the_first(tmp_path: Path) -> None:
    rows = [{"prompt": str(i), "answer": "1"} for i in range(9)]
    lines = jsonl(tmp_path / "p.jsonl", *rows)
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


def test_a_sample_is_drawn_by_the_seed_and_a_larger_one_holds_it(own_file: Path) -> None:
    def ids(**keys: Any) -> list[str]:
        return [item.id for item in _configured(own_file, columns="question=q,answer=gold", **keys)]

    some, more = ids(sample=4), ids(sample=8)
    assert some == sorted(some, key=int)  # numbers of the file, in its order
    assert some != ["0", "1", "2", "3"]
    assert set(some) < set(more)
    assert len(more) == 8
    assert ids(sample=4, seed=1) != some
    assert ids(sample=99) == ids(limit="all") == [str(i) for i in range(12)]


def test_a_sample_takes_the_place_of_a_limit_and_back() -> None:
    assert (load("demo").limit, load("demo").sample) == (25, None)
    config = load("demo", {"sample": "5"})
    assert (config.limit, config.sample) == (None, 5)
    assert load("demo", config.to_dict()) == config
    for other in ({"limit": 3}, {"offset": 3}):
        with pytest.raises(InvalidValue):
            load("demo", {"sample": 5, **other})
    with pytest.raises(InvalidValue, match="as random as any"):
        data.load_all(config)
    with pytest.raises(InvalidValue, match="never end"):
        data.load_all(load("demo", {"limit": "all"}))


def test_a_limit_that_takes_fewer_is_a_notice(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "p.jsonl", *({"prompt": f"{n}", "answer": "1"} for n in range(30)))
    assert _load(file, limit=20).notices == (
        f"{file}: 20 of 30 problems (the first; --limit all takes all)",
    )
    assert _load(file, sample=20).notices == (f"{file}: 20 of 30 problems (at random)",)
    assert not _load(file, limit=30).notices
    about = _load(file, limit=20).about()
    assert (about["of"], about["template"]) == (30, None)


def test_labels_are_as_short_as_they_can_be_and_never_the_same() -> None:
    names = ["easy", "a/mine.jsonl", "b/mine.jsonl", "x/other.jsonl", "/d/easy.jsonl", "gsm8k"]
    assert list(labels(names).values()) == [
        "easy", "a/mine", "b/mine", "other", "d/easy", "gsm8k",
    ]  # fmt: skip
    twins = labels(["x.jsonl", "x.json", "a/x.jsonl"])
    assert len(set(twins.values())) == 3


# ---------------------------------------------------------------- the hub


def test_a_revision_goes_to_the_hub_and_not_into_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    calls: list[dict[str, str]] = []

    class Rows(list[dict[str, Any]]):
        class info:  # noqa: N801
            download_checksums: ClassVar = {
                f"hf://datasets/openai/gsm8k@{commit}/main/test.parquet": {}
            }

        def select(self, which: list[int]) -> list[dict[str, Any]]:
            return [self[i] for i in which]

    class Fake:
        @staticmethod
        def load_dataset(*_: Any, split: str, **more: str) -> Rows:
            assert split == "test"
            calls.append(more)
            return Rows([{"question": f"q{i}", "answer": f"#### {i}"} for i in range(9)])

    monkeypatch.setitem(__import__("sys").modules, "datasets", Fake)
    sets = data.load_all(load("paper", {"datasets": "gsm8k@v1,math500", "limit": 2}))
    assert calls == [{"revision": "v1"}, {}]
    assert list(sets) == ["gsm8k", "math500"]
    about = sets["gsm8k"].about()
    assert (about["revision"], about["commit"], about["problems"]) == ("v1", commit, 2)
    assert about["digest"] == sets["math500"].about()["digest"]  # the fake's rows are the same
    for wrong, words in (("gsm8k@", "behind gsm8k@"), ("gsm8k@a,gsm8k@b", "one revision")):
        with pytest.raises(InvalidValue, match=words):
            expand(wrong.split(","))


def test_without_the_package_a_hub_set_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InvalidValue, match=r"`scripts/setup eval` installs it"):
        data.load_set("math500", "study", 1)


# ---------------------------------------------------------------- prompts


def test_columns_by_any_name_and_a_template_with_them(own_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.txt"
    template.write_text("{hint}: {problem} Box it: \\boxed{{}}.\n")
    columns = "question=q, answer=gold, id=nr"
    first = _configured(own_file, columns=columns, prompt_template=str(template))[0]
    assert first.message == "count 0: What is {0} + 1? Box it: \\boxed{}."
    assert (first.id, first.gold, first.scorer, first.chat) == ("n0", "1", "math", True)
    raw = _configured(own_file, columns="prompt=q,answer=gold", scorer="math")[0]
    assert (raw.message, raw.chat, raw.scorer) == ("What is {0} + 1?", False, "math")
    assert raw.id == "0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{problm}", "did you mean 'problem'"),
        ("{gold} {problem}", "not the answer's column gold"),
        ("no name", "all prompts would be the same"),
        ("\\boxed{} {problem}", "written twice"),
        ("{problem", "written twice"),
        ("{problem!r:>9}", "written twice"),
        ("{q.__class__}", "written twice"),
    ],
)
def test_a_template_that_cannot_be_filled(own_file: Path, text: str, words: str) -> None:
    template = own_file.with_name("t.txt")
    template.write_text(text)
    with pytest.raises(InvalidValue, match=words) as caught:
        _configured(own_file, columns="question=q,answer=gold", prompt_template=str(template))
    assert "prompt_template" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("question=qq,answer=gold", "did you mean 'q'"),
        ("quesiton=q", "did you mean 'question'"),
        ("question=q,prompt=hint,answer=gold", "question, prompt or messages"),
        ("question=", "ROLE=COLUMN"),
        ("question=q", "name yours"),  # there is no column `answer`
    ],
)
def test_columns_that_are_not_there(own_file: Path, columns: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        _configured(own_file, columns=columns)


def test_a_system_prompt_needs_a_chat_template(own_file: Path) -> None:
    tokenizer = build_tokenizer()
    (item, *_) = _configured(own_file, columns="question=q,answer=gold", system="Be brief.")
    with pytest.raises(InvalidValue, match="the tokenizer has none"):
        item.prompt_ids(tokenizer)
    tokenizer.chat_template = TEMPLATE
    rendered = f"[system] Be brief.\n[user] {item.message}\n[assistant]"
    assert item.prompt_ids(tokenizer) == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    (raw, *_) = _configured(own_file, columns="prompt=q,answer=gold", system="Be brief.")
    with pytest.raises(InvalidValue, match="go through none"):
        raw.prompt_ids(tokenizer)


def test_values_reach_the_chat_template_and_a_runs_identity(own_file: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE + "{% if not brief %} 1 2{% endif %}"
    columns = {"columns": "question=q,answer=gold"}
    (plain, *_) = _configured(own_file, **columns)
    ids = plain.prompt_ids(tokenizer)
    for value in ("brief=true", "brief=True", {"brief": True}, ["brief=true"]):
        (item, *_) = _configured(own_file, **columns, template_values=value)
        assert item.prompt_ids(tokenizer) == ids[: -len(tokenizer(" 1 2")["input_ids"])]
    (item, *_) = _configured(own_file, **columns, template_values="breif=true")
    with pytest.raises(InvalidValue, match=r"template_values = 'breif'.*chat template.*brief"):
        item.prompt_ids(tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(InvalidValue, match="the tokenizer has none"):
        item.prompt_ids(tokenizer)
    for wrong in ("brief", "brief=1,brief=2", "1=2"):
        with pytest.raises(InvalidValue, match="NAME=VALUE"):
            _configured(own_file, **columns, template_values=wrong)


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    turns = [*CHAT, {"role": "user", "content": "4 5"}]
    file = jsonl(tmp_path / "chat.jsonl", {"messages": turns, "answer": "9"})
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


def test_a_chat_has_one_system_prompt_and_no_template(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be kind."}, CHAT[0]]
    file = jsonl(tmp_path / "c.jsonl", {"messages": turns, "answer": "3"})
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    with pytest.raises(InvalidValue, match="system prompt of their own"):
        _load(file, system="Be brief.").items[0].prompt_ids(tokenizer)
    with pytest.raises(InvalidValue, match="used as they are"):
        _load(file, template="{problem}", prompt_template="t.txt")
    tokenizer.chat_template = "{{ raise_exception('users alone') }}"
    with pytest.raises(InvalidValue, match=r"messages that .* takes"):
        _load(file).items[0].prompt_ids(tokenizer)


def _tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """One token a character, and a first token that the tokenizer puts before every text."""
    letters = {chr(code): code - 27 for code in range(32, 127)}
    special = {"<s>": 0, "<unk>": 1, "\n": 2}
    core = Tokenizer(models.WordLevel({**special, **letters}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.add_special_tokens(["<s>", "<unk>"])
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="<unk>")
    made.chat_template = template
    return made


def _seen(tokenizer: PreTrainedTokenizerFast, item: data.Item) -> str:
    ids = item.prompt_ids(tokenizer)
    assert ids.count(0) == 1, "one first token"
    assert ids[0] == 0
    return "".join(tokenizer.convert_ids_to_tokens(ids[1:]))


def test_a_prompt_has_its_first_token_once(tmp_path: Path) -> None:
    item = _item(tmp_path, {"question": "1 + 1?", "answer": "2"})
    instruction = MATH_TEMPLATE.format(problem="1 + 1?")
    chat = _tokenizer("{{ bos_token }}<|user|>{{ messages[0].content }}<|assistant|>")
    assert _seen(chat, item) == f"<|user|>{instruction}<|assistant|>"
    assert _seen(_tokenizer(None), item) == instruction
    for text in ("<s><|user|>1 + 1?<|assistant|>", "<|user|>1 + 1?<|assistant|>"):
        raw = _item(tmp_path, {"prompt": text, "answer": "2"})
        assert _seen(chat, raw) == text.removeprefix("<s>")


# ---------------------------------------------------------------- sweeps


def _plan_ids(config: Config, out: Path) -> list[str]:
    plan = prepare(config, out).experiment.plan
    return [run.id for cell in plan.configurations for run in plan.runs(cell)]


def test_template_and_system_prompt_are_part_of_a_runs_identity_and_the_gold_is_not(
    tmp_path: Path, tiny_model: Path, tiny_config: Make
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    made = [problem("easy", "study", i) for i in range(2)]
    rows = [{"question": item.prompt, "answer": item.answer} for item in made]
    own = Path(jsonl(tmp_path / "mine.jsonl", *rows))
    wrong = Path(
        jsonl(tmp_path / "other" / "mine.jsonl", *({**row, "answer": "0"} for row in rows))
    )
    template = tmp_path / "t.txt"
    template.write_text("{problem}")

    def ids(dataset: Path = own, **keys: Any) -> list[str]:
        config = tiny_config(models=str(model), datasets=str(dataset), backends="full", **keys)
        return _plan_ids(config, tmp_path / "out")

    plain, put = ids(scorer="exact"), ids(scorer="exact", prompt_template=str(template))
    entries = ids(scorer="exact", system="plus")
    assert len({*plain, *put, *entries}) == 6
    assert ids(wrong, scorer="exact") == plain
    default = tmp_path / "default.txt"
    default.write_text(data.prompts.MATH_TEMPLATE)
    assert ids(scorer="exact", prompt_template=str(default)) == plain  # the same tokens


def test_files_of_the_same_name_are_scored_by_their_own_answers(
    tmp_path: Path, tiny_config: Make
) -> None:
    made = [problem("easy", "study", i) for i in range(3)]
    rows = [{"prompt": item.prompt, "answer": "?"} for item in made]
    first = jsonl(tmp_path / "a" / "mine.jsonl", *rows)
    second = jsonl(tmp_path / "b" / "mine.jsonl", *rows)
    template = tmp_path / "t.txt"
    template.write_text("{prompt}")
    config = tiny_config(
        datasets=f"{first},{second}",
        backends="full",
        detectors="none",
        limit=None,
        sample=2,
        prompt_template=str(template),
    )
    outcome, notes = go(config, tmp_path / "out")
    assert (notes.runs, outcome.counts.decoded) == (4, 2)  # the second file's are the first's
    entries = outcome.manifest["datasets"]
    assert [item["problems"] for item in entries] == [2, 2]
    assert entries[0]["file_digest"] == entries[1]["file_digest"]
    assert outcome.manifest["prompt"] == {"template": "{prompt}", "system": None}

    # Another answer: decodes nothing, and only the file it stands in is judged by it.
    import experiments.store.samples.replay as samples

    def judged(_: str, gold: str, *__: object, **___: object) -> Judgement:
        return Judgement(gold == "right")

    jsonl(Path(second), *({**row, "answer": "right"} for row in rows))
    again, _ = go(config, tmp_path / "out")
    assert again.counts.decoded == 0
    assert again.manifest["datasets"][1]["digest"] != entries[1]["digest"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "judged", judged)
        samples = Study.open(tmp_path / "out").samples([])
    assert {(item.dataset, item.correct) for item in samples} == {
        ("a/mine", False),
        ("b/mine", True),
    }
