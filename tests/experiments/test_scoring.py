"""What counts as solved."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from experiments.grid import data, scoring
from experiments.grid.answers import last_boxed

NEEDS_MATH = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs the extra `eval` (math-verify)"
)

PUBLIC = Path(os.environ.get("LIL_PUBLIC_DATA", "not given"))


def _correct(text: str, gold: scoring.Gold, scorer: str) -> bool | None:
    return scoring.judged(text, gold, scorer).correct


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so \\boxed{17}.", "17"),
        ("\\boxed{1} no, \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{3} then \\boxed{4", "3"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{", None),
        ("\\boxed{}", ""),
        ("17", None),
        ("", None),
    ],
)
def test_the_last_complete_box(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "gold", "scorer", "words"),
    [
        ("\\boxed{5}", "5", "exact", "'5' equals '5' character by character"),
        ("\\boxed{5} \\boxed{6}", ("5", "7"), "exact", "'6' does not equal '5' or '7' character"),
        ("\\boxed{5", "5", "exact", "no \\boxed{} of the output is complete"),
        ("\\boxed{5}", None, "exact", "no answer is known"),
        ("\\boxed{5}", "5", "none", "the scorer none judges nothing"),
        ("\\boxed{5}", "5", "mine:scorer", "mine:scorer is not loaded"),
        pytest.param(
            "\\boxed{0.5}",
            "\\frac{1}{2}",
            "math",
            "equals '\\\\frac{1}{2}' as math",
            marks=NEEDS_MATH,
        ),
    ],
)
def test_why_an_output_counts_as_it_does(
    text: str, gold: scoring.Gold, scorer: str, words: str
) -> None:
    assert words in scoring.reason(scoring.judged(text, gold, scorer), gold, scorer)


def test_numbers_need_no_math_verify_and_mathematics_is_refused_before_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring, "has_math_verify", lambda: False)
    scoring._same_mathematics.cache_clear()
    scoring.require("math", "mine.jsonl", ["11", ("1,018", "2.5"), None])
    scoring.require("exact", "easy", ["x^2"])
    with pytest.raises(InvalidValue, match=r"--scorer exact, stated or none.*scripts/setup eval"):
        scoring.require("math", "mine.jsonl", ["11", "\\sqrt{2}"])
    verdicts = {
        box: scoring.judged(f"\\boxed{{{box}}}", "11", "math").correct
        for box in ("11", "x = 11 apples", "12", "2+9")
    }
    assert verdicts == {"11": True, "x = 11 apples": True, "12": False, "2+9": None}
    sum_ = scoring.judged("\\boxed{2+9}", "11", "math")
    assert "only math-verify" in scoring.reason(sum_, "11", "math")
    scoring._same_mathematics.cache_clear()


@NEEDS_MATH
@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("\\dfrac{1}{2}", "\\frac{1}{2}", True),
        ("0.5", "\\frac{1}{2}", True),
        ("2\\sqrt{2}", "\\sqrt{8}", True),
        ("(3, 4)", "(4, 3)", False),
        ("18 or 19", "18", False),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})", True),
        ("-18", "18", False),
    ],
)
def test_equal_mathematics(answer: str, gold: str, same: bool) -> None:
    assert _correct(f"so \\boxed{{{answer}}}", gold, "math") is same


@NEEDS_MATH
@pytest.mark.parametrize("box", ["10^{10^{10}}", "100000000000!", "\\sum_{k=1}^{10^{9}} k^{-3}"])
def test_what_cannot_be_computed_is_wrong_within_the_limit(
    box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "LIMIT", 1)
    started = time.monotonic()
    assert not _correct(f"\\boxed{{{box}}}", "5", "math")
    assert time.monotonic() - started < 30  # it did not end at all without a limit


@NEEDS_MATH
def test_numbers_in_other_bases_are_others() -> None:
    assert not _correct("\\boxed{4210_6}", "4210_5", "math")
    assert not _correct("\\boxed{4210_{6}}", "4210_{5}", "math")
    assert _correct("\\boxed{4210_5}", "4210_{5}", "math")
    assert not _correct("\\boxed{4211_5}", "4210_{5}", "math")


@NEEDS_MATH
@pytest.mark.slow
@pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason="LIL_PUBLIC_DATA names no folder with copies of the public data sets",
)
@pytest.mark.parametrize(
    ("name", "problems"),
    [("gsm8k_test.jsonl", 1319), ("math500.jsonl", 500), ("aime_1983_2024.jsonl", 933)],
)
def test_every_gold_answer_is_its_own(name: str, problems: int) -> None:
    items = data.load(str(PUBLIC / name), "study", 10_000)
    assert len(items) == problems
    assert {item.scorer for item in items} == {"math"}
    wrong = [
        (item.id, item.gold)
        for item in items
        if not _correct(f"\\boxed{{{item.gold}}}", item.gold, "math")
    ]
    assert wrong == []
