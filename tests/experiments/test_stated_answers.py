"""What an output states where nobody asked for a box: rules, numbers, texts that were cut."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stated_answers import OUTPUTS, Output
from sweeping import go

from attention.errors import InvalidValue
from experiments.grid import answers, data, scoring
from experiments.grid.config import Config
from experiments.grid.data import ProblemChoice
from experiments.store.files.records import Record
from experiments.store.store import Store
from experiments.store.study import Study
from lil import Trace


def test_there_are_enough_of_them_and_each_rule_finds_some() -> None:
    assert len({one.text + one.gold for one in OUTPUTS}) == len(OUTPUTS) >= 60
    for name, _ in answers.RULES:
        assert sum(one.rule is not None and one.rule in name for one in OUTPUTS) >= 4


@pytest.mark.parametrize("one", OUTPUTS, ids=lambda one: one.text[:40].replace("\n", " "))
def test_a_reader_would_say_the_same(one: Output) -> None:
    found = scoring.judged(one.text, one.gold, "stated", ended=one.ended)
    assert found.correct is one.right, found
    if one.rule is None:
        assert (found.answer, found.rule) == (None, None)
    else:
        assert one.rule in str(found.rule), found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1000", "1000"),
        ("1,000", "1000"),
        ("1000.0", "1000"),
        ("$1000", "1000"),
        (r"\$1{,}000", "1000"),
        (r"1\,000", "1000"),
        ("1,00", None),
        ("12,345.50 dollars", "12345.5"),
        ("72 clips.", "72"),
        (r"72\text{ clips}", "72"),
        (r"18\,\mathrm{cm}^2", "18"),
        ("-5 degrees", "-5"),
        ("\u22125", "-5"),
        (".5", "1/2"),
        ("3/4", "3/4"),
        (r"\dfrac{3}{4}", "3/4"),
        (r"\frac34", "3/4"),
        ("2 1/2", "5/2"),
        (r"-2\frac{1}{2}", "-5/2"),
        ("1/0", None),
        ("x = 5", "5"),
        ("48 + 24 = 72", "72"),
        ("x = 1, y = 2", None),
        ("x >= 5", None),
        (r"x \ge 5 = y", None),
        ("2.5 million", "2500000"),
        ("5x", None),
        ("2 pi", None),
        (r"\frac{\pi}{2}", None),
        (r"3\sqrt{2}", None),
        ("3 or 4", None),
        ("3, 4", None),
        ("(3,4)", None),
        ("12 PM", None),
        ("3:30", None),
        ("4210_5", None),
        ("1.8e1", None),
        ("seventy-two", None),
        ("", None),
        ("9" * 200, None),
    ],
)
def test_what_is_a_number_and_which(text: str, value: str | None) -> None:
    assert answers.values(text) == (frozenset() if value is None else {Fraction(value)})


def test_a_percentage_is_both_of_its_numbers() -> None:
    for text in ("25%", r"25\%", "25 percent"):
        assert answers.values(text) == {Fraction(25), Fraction(1, 4)}
    assert not answers.same_number("250", "25%")


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("1,000", "number"),
        ("$18.", "number"),
        ("72 clips", "number"),
        (r"\frac{1}{2}", "number"),
        (r"\frac{\pi}{2}", "mathematics"),
        ("x^2", "mathematics"),
        ("(3,4)", "mathematics"),
        ("Paris", "words"),
        ("(B)", "words"),
    ],
)
def test_what_a_gold_answer_is_compared_as(gold: str, kind: str) -> None:
    assert answers.kind_of(gold) == kind


def test_mathematics_that_is_no_number_needs_the_package(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    scoring.require("stated", "mine", ["72", ("Paris", "$5"), None])
    with pytest.raises(InvalidValue, match="math-verify"):
        scoring.require("stated", "mine", ["72", r"x^2"])


@pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs the extra `eval` (math-verify)"
)
def test_mathematics_is_compared_as_such() -> None:
    text = "So the answer is $x^2 + 2x + 1$."
    assert scoring.judged(text, "(x+1)^2", "stated").correct
    assert not scoring.judged(text, "(x+2)^2", "stated").correct


def test_looped_texts_of_any_length_are_judged() -> None:
    for part in ("The answer is $$", "<answer>", "1 ", "**", "\\boxed{", "#### ", "answer: ", "=,"):
        scoring.judged(part * 20_000, "72", "stated")
        scoring.judged(part * 20_000, "Paris", "stated")


PARTS = (
    "answer", " is ", ":", "=", "\\boxed{", "}", "{", "\\frac", "\\(", "\\]", "####", "<answer>",
    "</answer>", "</think>", "7", "0", "1,000", ".", "/", "$", "**", "%", "-", "I cannot", "x",
    "million", "\\text{", "\\,", "(", "[", "\n", " ", "\u2212", "\u0663", "\u00b2", "9" * 120,
)  # fmt: skip


@given(
    st.lists(st.sampled_from(PARTS), max_size=30).map("".join),
    st.sampled_from(["7", "1/2", "x", "(B)"]),
)
@settings(max_examples=300, deadline=None)
def test_whatever_a_model_writes_is_judged(text: str, gold: str) -> None:
    for ended in (True, False):
        found = scoring.judged(text, gold, "stated", ended=ended)
        assert found.correct in (True, False)
        assert (found.answer is None) == (found.rule is None)
        assert not found.correct or found.answer is not None
    assert all(isinstance(one, Fraction) for one in answers.values(text))


def test_the_page_has_every_rule_in_its_order() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text()
    table = page.partition("| rule | what it reads |")[2].partition("\n\n")[0]
    rows = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert rows == [name for name, _ in answers.RULES]


# ---------------------------------------------------------------- which scorer follows from what


def _file(path: Path, **row: Any) -> str:
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("row", "choice", "scorer"),
    [
        ({"question": "1 + 1?"}, {}, "math"),
        ({"question": "1 + 1?"}, {"template": "{problem}"}, "stated"),
        ({"question": "1 + 1?"}, {"template": "{problem} \\boxed{{}}"}, "math"),
        ({"question": "1 + 1?"}, {"template": "{problem}", "system": "Use \\boxed{}."}, "math"),
        ({"question": "1 + 1?"}, {"template": "{problem}", "scorer": "exact"}, "exact"),
        ({"prompt": "1 + 1?"}, {}, "stated"),
        ({"prompt": "1 + 1? In a \\boxed{}."}, {}, "exact"),
        ({"messages": [{"role": "user", "content": "1 + 1?"}]}, {}, "stated"),
        ({"messages": [{"role": "user", "content": "\\boxed{1 + 1}"}]}, {}, "math"),
        ({"prompt": "1 + 1?"}, {"scorer": "none"}, "none"),
    ],
)
def test_the_scorer_is_what_the_prompt_asks_for(
    row: dict[str, Any], choice: dict[str, Any], scorer: str, tmp_path: Path
) -> None:
    file = _file(tmp_path / "p.jsonl", **row, answer="2")
    (item,) = data.load_set(file, "study", None, ProblemChoice(**choice)).items
    assert item.scorer == scorer


def test_problems_of_the_shipped_reasoner_are_judged_by_their_box() -> None:
    choice = ProblemChoice(template="{prompt}\n", prompt_template="t.txt")
    (item,) = data.load_set("easy", "study", 1, choice).items
    assert item.scorer == "exact"


# ---------------------------------------------------------------- in a store


def test_a_run_that_its_cap_cut_has_stated_nothing(
    tiny_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text ends by itself in one store, and is cut in the other."""
    file = _file(tmp_path / "p.jsonl", prompt="2 2 2 2 2 2 ", answer="7")
    config = tiny_config(datasets=file, backends="full", detectors="none")
    go(config, tmp_path / "out")
    kept = Record.values

    def changed(record: Record, finish: str) -> dict[str, Any]:
        values = kept(record)
        trace = Trace.from_dict(values)
        assert trace.tokens > 1
        pieces = (b"it is 7.", *[b""] * (trace.tokens - 1))
        return dataclasses.replace(trace, pieces=pieces, finish=finish).to_dict()

    found = {}
    for finish in ("eos", "length"):
        monkeypatch.setattr(Record, "values", lambda one, end=finish: changed(one, end))
        for path in (tmp_path / "out" / "cache").glob("*.samples"):
            path.unlink()
        (sample,) = Study.open(tmp_path / "out").samples([]).samples
        (run,) = Store(tmp_path / "out").frame().to_dict("records")
        found[finish] = (sample.correct, sample.answer, sample.rule)
        assert (bool(run["correct"]), run["answer"], run["rule"]) == found[finish]
    assert found == {"eos": (True, "7", "the last number"), "length": (False, None, None)}
