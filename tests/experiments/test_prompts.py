"""Own data: templates, system prompts, columns, samples, revisions; what is in an identity."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from reasoner_training.tokenizer import build_tokenizer
from sweeping import go

from attention.errors import InvalidValue
from experiments.grid import data
from experiments.grid.config import Config
from experiments.grid.data.sets import expand, labels
from experiments.grid.presets import load
from experiments.grid.scoring import Judgement
from experiments.reasoner import problem
from experiments.store.study import Study
from experiments.sweep import sweep

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _items(path: Path, **keys: Any) -> tuple[data.Item, ...]:
    config = load("demo-small", {"datasets": str(path), **keys})
    (item,) = data.load_all(config).values()
    return item.items


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    rows = [
        {"q": f"What is {{{i}}} + 1?", "gold": str(i + 1), "hint": f"count {i}", "nr": f"n{i}"}
        for i in range(12)
    ]
    return _write(tmp_path / "mine.jsonl", rows)


def test_columns_by_any_name_and_a_template_with_them(own_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.txt"
    template.write_text("{hint}: {problem} Box it: \\boxed{{}}.\n")
    columns = "question=q, answer=gold, id=nr"
    first = _items(own_file, columns=columns, prompt_template=str(template))[0]
    assert first.message == "count 0: What is {0} + 1? Box it: \\boxed{}."
    assert (first.id, first.gold, first.scorer, first.chat) == ("n0", "1", "math", True)
    raw = _items(own_file, columns="prompt=q,answer=gold", scorer="math")[0]
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
        _items(own_file, columns="question=q,answer=gold", prompt_template=str(template))
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
        _items(own_file, columns=columns)


def test_a_system_prompt_needs_a_chat_template(own_file: Path) -> None:
    tokenizer = build_tokenizer()
    (item, *_) = _items(own_file, columns="question=q,answer=gold", system="Be brief.")
    with pytest.raises(InvalidValue, match="the tokenizer has none"):
        item.prompt_ids(tokenizer)
    tokenizer.chat_template = CHAT
    rendered = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": item.message}],
        tokenize=False,
    )
    assert item.prompt_ids(tokenizer) == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    (raw, *_) = _items(own_file, columns="prompt=q,answer=gold", system="Be brief.")
    with pytest.raises(InvalidValue, match="go through none"):
        raw.prompt_ids(tokenizer)


def test_a_sample_is_drawn_by_the_seed_and_a_larger_one_holds_it(own_file: Path) -> None:
    def ids(**keys: Any) -> list[str]:
        return [item.id for item in _items(own_file, columns="question=q,answer=gold", **keys)]

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
    with pytest.raises(InvalidValue, match="not both"):
        load("demo", {"sample": 5, "limit": 3})
    with pytest.raises(InvalidValue, match="as random as any"):
        data.load_all(config)
    with pytest.raises(InvalidValue, match="never end"):
        data.load_all(load("demo", {"limit": "all"}))


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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "\\ud800", "answer": "1"}', "whole characters"),
        ('{"prompt": "a", "answer": "1", "id": "\\udfff"}', "whole characters"),
        ('{"prompt": "a", "answer": ' + "9" * 5000 + "}", "digits"),
        ("[" * 3000, "too many brackets"),
        ('{"prompt": "a", "answer": "1", "id": "' + "x" * 201 + '"}', "200 printable"),
        ('{"prompt": "a", "answer": "1", "id": "a\\nb"}', "200 printable"),
        ('{"prompt": "a", "answer": "1", "id": [1]}', "200 printable"),
        ('{"prompt": "a", "answer": NaN}', "an answer"),
        ('{"prompt": " ", "answer": "1"}', "a text"),
    ],
)
def test_a_line_nothing_could_be_done_with_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n\n' + line + "\n")
    with pytest.raises(InvalidValue, match=words) as caught:
        data.load(str(path), "study", None)
    assert f"line 3 of {path}" in str(caught.value)
    assert len(str(caught.value)) < 600
    str(caught.value).encode()


def test_labels_are_as_short_as_they_can_be_and_never_the_same() -> None:
    names = ["easy", "a/mine.jsonl", "b/mine.jsonl", "x/other.jsonl", "/d/easy.jsonl", "gsm8k"]
    assert list(labels(names).values()) == [
        "easy", "a/mine", "b/mine", "other", "d/easy", "gsm8k",
    ]  # fmt: skip
    twins = labels(["x.jsonl", "x.json", "a/x.jsonl"])
    assert len(set(twins.values())) == 3


def _plan_ids(config: Config, out: Path) -> list[str]:
    plan = sweep.prepare(config, out).experiment.plan
    return [run.id for cell in plan.configurations for run in plan.runs(cell)]


def test_template_and_system_prompt_are_part_of_a_runs_identity_and_the_gold_is_not(
    tmp_path: Path, tiny_model: Path, tiny_config: Callable[..., Config]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text(CHAT)
    made = [problem("easy", "study", i) for i in range(2)]
    rows = [{"question": item.prompt, "answer": item.answer} for item in made]
    own = _write(tmp_path / "mine.jsonl", rows)
    wrong = _write(tmp_path / "other" / "mine.jsonl", [{**row, "answer": "0"} for row in rows])
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


def test_files_of_one_name_are_scored_by_their_own_answers_and_told_apart(
    tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    made = [problem("easy", "study", i) for i in range(3)]
    rows = [{"prompt": item.prompt, "answer": "?"} for item in made]
    first = _write(tmp_path / "a" / "mine.jsonl", rows)
    second = _write(tmp_path / "b" / "mine.jsonl", rows)
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

    _write(second, [{**row, "answer": "right"} for row in rows])
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
