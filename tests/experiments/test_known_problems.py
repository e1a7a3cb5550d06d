"""Public problems in their own forms, from files and packages; how a chat model is asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweeping import go
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import data, scoring
from experiments.grid.config import Config
from experiments.grid.data import ProblemChoice
from experiments.grid.data.prompts import MATH_TEMPLATE

PUBLIC = Path(os.environ.get("LIL_PUBLIC_DATA", "not given"))

GSM8K = {
    "question": "Natalia sold 48 clips in April, and half as many in May. How many in all?",
    "answer": "In May <<48/2=24>>24 clips.\nIn all <<48+24=72>>72 clips.\n#### 72",
}
MATH = {
    "problem": "Convert the point $(0,3)$ to polar coordinates.",
    "solution": "First $r = \\boxed{3}$, then $\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}.$",
    "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
    "subject": "Precalculus",
    "level": 2,
    "unique_id": "test/precalculus/807.json",
}
AIME = {
    "ID": "1983-1",
    "Year": 1983,
    "Problem Number": 1,
    "Question": "Find $\\log_zw$.",
    "Answer": "060",
    "Part": None,
}


def _file(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _one(tmp_path: Path, row: dict[str, Any], **choice: Any) -> data.Item:
    file = _file(tmp_path / "rows.jsonl", row)
    (item,) = data.load_set(file, "study", None, ProblemChoice(**choice)).items
    return item


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
        ({"question": "Q", "prompt": None, "answer": "5"}, "5", "0"),
    ],
)
def test_forms_that_people_know(row: dict[str, Any], gold: str, id_: str, tmp_path: Path) -> None:
    item = _one(tmp_path, row)
    assert (item.gold, item.id, item.scorer) == (gold, id_, "math")
    assert item.message == MATH_TEMPLATE.format(problem=item.question)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"question": "A", "prompt": "B", "answer": "5"},
            "columns of .* = 'question and prompt': expected one column that asks, .*"
            "--column question=question",
        ),
        ({"question": "A", "problem": "B", "answer": "5"}, "question and problem"),
        (
            {"question": "Q", "answer": "\\boxed{5}\n#### 6"},
            "answer in line 1 .*'6' stands behind ####, '5' in the last box",
        ),
        ({"question": "Q", "answer": "May: 24.\nIn all: 72."}, "answer in line 1 .*answer alone"),
        ({"problem": "Q", "solution": "it is 5"}, r"solution in line 1 .*\\boxed{} or behind ####"),
        ({"problem": "Q", "solution": "\\boxed{5"}, "solution in line 1"),
    ],
)
def test_what_is_ambiguous_is_refused(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=words):
        _one(tmp_path, row)


def test_what_is_meant_may_be_said(tmp_path: Path) -> None:
    both = {"question": "A", "prompt": "B", "answer": "5"}
    assert _one(tmp_path, both, columns={"prompt": "prompt"}).question == "B"
    assert _one(tmp_path, {"problem": "Q", "solution": "it is 5"}, scorer="none").gold is None
    code = _one(tmp_path, {"prompt": "Q", "answer": "1\n2"})
    assert (code.gold, code.scorer) == ("1\n2", "stated")


@pytest.mark.parametrize(
    "gold", ["1000", "1,000", "1,000.", "$1,000", "\\$1{,}000", "1000 dollars", "1000.00", "$1000."]
)
@pytest.mark.parametrize("scorer", ["stated", "math"])
def test_gold_answers_are_read_as_people_write_them(gold: str, scorer: str) -> None:
    if scorer == "math":
        pytest.importorskip("math_verify", reason="needs the extra `eval` (math-verify)")
    for box in ("1000", "1,000", "\\$1000", "1000\\text{ dollars}"):
        assert scoring.correct(f"\\boxed{{{box}}}", gold, scorer)
    assert not scoring.correct("\\boxed{100}", gold, scorer)


@pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason="LIL_PUBLIC_DATA names no folder with copies of the public data sets",
)
def test_published_solutions_end_with_the_published_answer() -> None:
    published = data.load(str(PUBLIC / "math500.jsonl"), "study", None)
    columns = {"question": "problem", "answer": "solution"}
    choice = ProblemChoice(columns=columns)
    solved = data.load_set(str(PUBLIC / "math500.jsonl"), "study", None, choice).items
    different = [
        item.id for item, other in zip(published, solved, strict=True) if item.gold != other.gold
    ]
    assert len(different) <= 5


# ---------------------------------------------------------------- packages and folders


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with problems in it, which leaves a file where it is imported."""
    folder = tmp_path / "site" / "known_problems"
    (folder / "data" / "single").mkdir(parents=True)
    ran = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
    (folder / "__init__.py").write_text(ran)
    _file(folder / "data" / "gsm8k.jsonl", GSM8K)
    for name, answer in (("b", "\nA step.\n#### 1,002\n"), ("a", "3")):
        text = f'question = "Of {name}?"\nanswer = """{answer}"""\n'
        (folder / "data" / "single" / f"{name}.toml").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


def test_problems_of_an_installed_package_are_read_and_nothing_is_imported(package: Path) -> None:
    (item,) = data.load("package:known_problems/data/gsm8k.jsonl", "study", None)
    assert (item.question, item.gold) == (GSM8K["question"], "72")
    first, second = data.load("package:known_problems/data/single", "study", None)
    assert [(item.id, item.question, item.gold) for item in (first, second)] == [
        ("a", "Of a?", "3"),
        ("b", "Of b?", "1002"),
    ]
    assert data.load(str(package / "data" / "single"), "study", 1) == [first]
    assert "known_problems" not in sys.modules
    assert not (package / "ran").exists()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("package:known_problem/data/gsm8k.jsonl", "an installed package that is a folder"),
        ("package:json.decoder/x.jsonl", "package:NAME/FILE"),
        ("package:known_problems", "package:NAME/FILE"),
        ("package:known_problems/../x.jsonl", "package:NAME/FILE"),
        (
            "package:known_problems/data/gsm8.jsonl",
            "did you mean 'package:known_problems/data/gsm8k.jsonl'",
        ),
        ("package:known_problems/data", r"\(package:known_problems/data/gsm8k.jsonl, .*/single\)"),
    ],
)
def test_what_no_package_has_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        data.load(name, "study", None)


def test_a_file_that_is_no_toml_is_named(package: Path) -> None:
    (package / "data" / "single" / "c.toml").write_text("question = \n")
    with pytest.raises(InvalidValue, match=r"c\.toml.*a problem in TOML"):
        data.load(str(package / "data" / "single"), "study", None)


# ---------------------------------------------------------------- how a chat model is asked

CHAT = (
    "{{ bos_token }}{% for one in messages %}<|{{ one.role }}|>{{ one.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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


def _asked(tokenizer: PreTrainedTokenizerFast, item: data.Item) -> str:
    ids = item.prompt_ids(tokenizer)
    assert ids.count(0) == 1, "one first token"
    assert ids[0] == 0
    return "".join(tokenizer.convert_ids_to_tokens(ids[1:]))


def test_a_chat_model_is_asked_once_and_answers_next(tmp_path: Path) -> None:
    item = _one(tmp_path, {"question": "1 + 1?", "answer": "2"})
    instruction = MATH_TEMPLATE.format(problem="1 + 1?")
    tokenizer = _tokenizer(CHAT)
    assert _asked(tokenizer, item) == f"<|user|>{instruction}<|end|><|assistant|>"
    plain = _tokenizer(None)
    assert _asked(plain, item) == instruction
    chat = _one(tmp_path, {"messages": [{"role": "user", "content": "1 + 1?"}], "answer": "2"})
    assert _asked(tokenizer, chat) == "<|user|>1 + 1?<|end|><|assistant|>"


def test_a_prompt_that_has_its_first_token_gets_no_second(tmp_path: Path) -> None:
    for text in ("<s><|user|>1 + 1?<|end|><|assistant|>", "<|user|>1 + 1?<|end|><|assistant|>"):
        item = _one(tmp_path, {"prompt": text, "answer": "2"})
        assert _asked(_tokenizer(CHAT), item) == text.removeprefix("<s>")


def test_a_manifest_says_how_each_data_set_was_put(
    tiny_config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = _file(tmp_path / "own.jsonl", {"prompt": "1 2", "answer": "3"})
    boxed = _file(tmp_path / "asked.jsonl", {"question": "1 2", "answer": "3"})
    config = tiny_config(
        datasets=f"{own},{boxed},easy", backends="full", detectors="none", scorer="exact", limit=1
    )
    outcome, _ = go(config, tmp_path / "out")
    templates = {Path(item["name"]).stem: item["template"] for item in outcome.manifest["datasets"]}
    assert templates == {"own": None, "asked": MATH_TEMPLATE, "easy": None}
    assert main(["list", "datasets", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)["datasets"]
    assert {"gsm8k", "math500", "aime", "gym:NAME", "package:NAME/FILE"} <= names.keys()
