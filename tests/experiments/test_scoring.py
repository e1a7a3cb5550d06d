"""What counts as solved."""

from __future__ import annotations

import importlib.util
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from experiments.grid import comparison, data, mathematics, scoring
from experiments.grid.answers import last_boxed
from lil.thinking import KNOWN

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
        ("\\boxed{2} \\boxed{}", "2"),
        ("\\boxed {4} or \\boxed 5", "5"),
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
        ("\\boxed{0.5}", "\\frac{1}{2}", "math", "'0.5' equals '\\\\frac{1}{2}' as numbers"),
        ("", "6,5", "stated", "no rule finds an answer"),
    ],
)
def test_why_an_output_counts_as_it_does(
    text: str, gold: scoring.Gold, scorer: str, words: str
) -> None:
    assert words in scoring.reason(scoring.judged(text, gold, scorer), gold, scorer)


def test_numbers_need_no_math_verify_and_mathematics_is_refused_before_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mathematics, "is_installed", lambda: False)
    comparison.compare.cache_clear()
    scoring.require("math", "mine.jsonl", ["11", ("1,018", "2.5"), None, "(1, 2)", "Oslo", "C"])
    scoring.require("exact", "easy", ["x^2"])
    with pytest.raises(InvalidValue, match=r"--scorer exact or none.*scripts/setup eval"):
        scoring.require("math", "mine.jsonl", ["11", "\\sqrt{2}"])
    verdicts = {
        box: scoring.judged(f"\\boxed{{{box}}}", "11", "math").correct
        for box in ("11", "x = 11 apples", "12", "2+9", "\\sqrt{2}^2")
    }
    assert list(verdicts.values()) == [True, True, False, True, None]
    unknown = scoring.judged("\\boxed{\\sqrt{2}^2}", "11", "math")
    assert "only math-verify" in scoring.reason(unknown, "11", "math")
    comparison.compare.cache_clear()


#: Kind -> gold answer, boxes that are right and boxes that are wrong, math-verify or not.
BOXES = {
    "small numbers": [
        ("0.0000008", ["8e-7", r"8\times 10^{-7}"], ["0.0000009", "0"]),
        (r"\frac{1}{903!}", [r"1/903!"], [r"\frac{1}{904!}"]),
        (r"\frac{3^{800}-1}{2\cdot 3^{801}}", [], [r"\frac{1}{6}", "0"]),
        (r"\frac17", ["0.142857", "0.14285714"], ["0.14", "0.142858"]),
    ],
    "relations": [
        ("14", [r"\approx 14", "n=14"], [r"\ge 14", "<14", r"\ne 14", r"\text{at least } 14"]),
        (r"\le 5", [r"x\le 5", "≤5"], [r"\ge 5", "< 5", "5"]),
        (r"(2,\infty)", ["x>2", "2<x"], ["x<2", r"x\ge 2", r"[2,\infty)", "2"]),
        ("(-2,2)", ["|x|<2", r"x>-2\text{ and }x<2"], ["|x|>2", r"|x|\le 2"]),
        ("x>2", [r"(2,\infty)", "x > 2.0"], ["y>2"]),
        ("[1,6)", [r"1\le t<6"], ["(1,6)", "1<t<6", "[1,6]"]),
        (
            r"(-\infty,0)\cup(4,\infty)",
            [r"x>4\text{ or }x<0", r"x<0\lor x>4"],
            ["(0,4)", r"x\ge4\text{ or }x<0"],
        ),
        ("y=6", ["6", "y = 6.0"], ["x=6", "y=-6"]),
    ],
    "words": [
        (r"6:45\text{ PM}", ["6:45", "6:45 p.m.", "18:45"], [r"6:45\text{ AM}", "6:54 PM"]),
        (r"8\%\text{ more}", [r"8\%"], [r"8\%\text{ less}"]),
        (r"9\text{ wins}", ["9"], [r"9\text{ losses}"]),
        ("11", [r"11\text{ cm}^2", r"\$11", "11 pens"], [r"11\pi", "11x"]),
        (r"40\text{ cm}^2", [r"40\text{ square centimetres}", "40"], [r"40\text{ cm}^3"]),
        (r"\text{April 9}", ["April 9", r"\text{9 April}"], ["April 8", r"\text{May 9}", "9"]),
        (r"\text{Lena}", ["Lena.", r"\textbf{lena}"], ["Lina", "5"]),
        ("BDA", [r"\text{BDA}"], ["ABD", "DAB"]),
        ("m", [r"\text{m}"], ["M", "n"]),
    ],
    "options": [("B", ["(B)", r"\text{(B) } 12", r"\text{B. 12}", r"\text{B}: 12"], ["A", "12"])],
    "lists": [
        ("3,3,8", ["8, 3, 3"], ["3,8", "3,8,8", "338"]),
        ("(5,2)", ["x=5, y=2", r"\begin{pmatrix} 5 \\ 2 \end{pmatrix}"], ["(2,5)", "[5,2]"]),
        (r"\{4,6\}", ["6,4", r"4\text{ and }6"], ["4", r"\{4,7\}"]),
        (r"\pm 7", ["7,-7"], ["7", "-7"]),
    ],
    "spellings": [
        ("31500", ["3.15e4", r"31\;500", "31 500", "31{,}500", "31'500"], ["31.5", "315", "31"]),
        ("0.75", ["¾", r"\sfrac{3}{4}", r"75\%", "3/4."], ["0.34", r"\frac43"]),
        (r"\frac{8}{3}", [r"2.\overline{6}", r"2\frac23", "2⅔"], ["2.6", r"\frac{23}{3}"]),
        (
            "64",
            ["8²", "2^6", r"\bf{64}", r"\color{red}{64}", r"64\\", r"\text{Answer: }64"],
            ["82"],
        ),
        ("-6", ["\u20136", "\u22126.", r"\text{negative }6"], ["6"]),
        ("5", ["12_3", r"12_{3}"], ["12", "21_3"]),
        ("21_7", ["21", "15", r"(21)_7"], ["21_8"]),
        (r"FE_{16}", ["254"], ["FE_{17}", "14"]),
        (r"\frac23", [r"0.\bar{6}", "0.666..."], ["0.66"]),
        ("9", [r"9 \qquad \text{(cm)}", r"\text{(B) } 9", r"\colorbox{red}{9}", "9.0"], ["9k"]),
    ],
}
#: What math-verify alone can say.
MATHEMATICS = {
    "expressions": [
        (r"\sqrt{8}", [r"2\sqrt2.", "2√2", "2.8284271247461903"], [r"2\sqrt3", "2.83"]),
        (r"3^{-44}\sqrt2", [r"\frac{\sqrt2}{3^{44}}"], [r"3^{-45}\sqrt2", "0"]),
        ("x^2-9", ["(x-3)(x+3)", "x²-9"], ["x^2+9", "9"]),
        (r"2\pm\sqrt3", [r"2-\sqrt3, 2+\sqrt3"], [r"2+\sqrt3"]),
    ],
    "equations": [
        ("x+3y=7", ["2x+6y=14", "x=7-3y", "7-x-3y=0"], ["x-3y=7", "7", "x+3y=8"]),
        ("x^2+4y^2=16", [r"\frac{x^2}{16}+\frac{y^2}{4}=1"], ["4x^2+y^2=16", "16"]),
        ("y=2x-1", ["2x-1", "f(x)=2x-1"], ["y=2x+1", "x=2y-1"]),
        ("x+y<4", ["y<4-x", "2x+2y<8"], ["x+y>4", r"x+y\le 4"]),
    ],
}


def _misjudged(kinds: dict[str, list[tuple[str, list[str], list[str]]]]) -> list[tuple[str, str]]:
    return [
        (gold, box)
        for rows in kinds.values()
        for gold, right, wrong in rows
        for box in (*right, *wrong)
        if bool(_correct(f"Thus \\boxed{{{box}}}.", gold, "math")) is not (box in right)
    ]


@pytest.mark.parametrize("kind", BOXES)
def test_boxes_of_each_kind_without_math_verify(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "is_installed", lambda: False)
    comparison.compare.cache_clear()
    assert _misjudged({kind: BOXES[kind]}) == []
    comparison.compare.cache_clear()


@NEEDS_MATH
def test_boxes_of_each_kind_with_math_verify_in_any_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(_misjudged, MATHEMATICS | BOXES).result() == []


#: Gold answer, outputs that state it, outputs that do not, where no box was asked for.
STATED = [
    ("3000", ["The answer is 3\u00d710^3.", "The answer is 3e3.", "The answer is 3K."], []),
    (
        "3",
        ["Three.", "The answer is 7 - 4."],
        ["The answer is 3\u00d710^3.", "The answer is 3 000."],
    ),
    ("8", ["It is 7. The answer is 2^3.", "The answer is 9... no, wait, 8."], []),
    ("8", ["~~9~~ The answer is 8."], ["The answer is 8π.", "The answer is 8 or 9."]),
    (
        "6",
        ["The answer is 3! = 6.", "It is 6 [3 of 2].", "The bill is $6. (Tip: 10%)"],
        [
            "The answer is sin(6).",
            "The answer is √6.",
            "It is twice 6.",
            "The answer is 6!, or so.",
        ],
    ),
    (
        "30",
        ["The answer is 15% of 200 = 30.", "It is 30."],
        ["The answer is half of 30.", "x > 30"],
    ),
    ("8", ["8 = 2 x 4"], ["The answer is less than 8.", "The answer is 8 feet 2 inches."]),
    (
        "8",
        ["The answer is 4% of 200, which is 8."],
        ["The answer is (8, 9).", "The answer is \u20138."],
    ),
    ("36", ["The answer is 3 dozen.", "The answer is thirty-six."], ["The answer is not 36."]),
    ("36", ["She will be 36 in 2040.", "It costs $36 (4 tickets at $9 each)."], []),
    ("36", ["He needs 36 euros for the 50 euro bike.\n\nShall I show 2 more ways?"], []),
    ("36", ['{"answer": "36", "score": 0.5}', "答案是36。", "Total: 36\n\nNote: 2 are free."], []),
    ("36", ["#### 36\n\nQuestion: 1+1?\n#### 2", "Row: \\boxed{9}.\n\nThe answer is 36."], []),
    ("36", ["<think>It is 35.</think>The answer is 36."], ["[THINK]The answer is 36."]),
    ("36", [], [f"{m.open}The answer is 36.{m.end}I give up." for m in KNOWN]),
    ("B", ["B", "**B**", "Answer: B) 12", "The answer is B because it is odd.<|im_end|>"], ["A"]),
    ("B", ["B is right.", "I would choose B.", "(B)"], ["A or B.", "B is wrong.", "It isn't B."]),
    ("B", ["The answer is not A. It is B.", "The correct answer is option B."], []),
    ("Riga", ["**Riga**", "The answer is Riga.<|eot_id|>"], ["The answer is not Riga."]),
    ("no", ["No.", "The answer is no, since 7 is odd.", "No, it is not."], ["Yes."]),
    ("4,6", ["The roots are $\\boxed{4}$ and $\\boxed{6}$."], ["Say $\\boxed{4}$."]),
]


def test_stated_answers() -> None:
    wrong = [
        (gold, text)
        for gold, right, others in STATED
        for text in (*right, *others)
        if bool(_correct(text, gold, "stated")) is not (text in right)
    ]
    assert wrong == []


def test_a_box_before_the_models_own_next_question_counts() -> None:
    text = "So $\\boxed{7}$.\n\nQuestion: 2+3?\nAnswer: $\\boxed{5}$"
    assert (_correct(text, "7", "math"), _correct(text, "5", "math")) == (True, False)


def test_a_verdict_names_both_rules() -> None:
    judged = scoring.judged("So the answer is 1/2.", "0.5", "stated")
    assert (judged.rule, judged.compared) == ('the last "answer is"', "as numbers")


@NEEDS_MATH
@pytest.mark.parametrize("box", ["10^{10^{10}}", "100000000000!", "\\sum_{k=1}^{10^{9}} k^{-3}"])
def test_what_cannot_be_computed_is_wrong_within_the_limit(
    box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mathematics, "LIMIT", 1)
    started = time.monotonic()
    assert not _correct(f"\\boxed{{{box}}}", "5", "math")
    assert time.monotonic() - started < 30  # it did not end at all without a limit


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
    items = data.load_set(str(PUBLIC / name), "study", 10_000).items
    assert len(items) == problems
    assert {item.scorer for item in items} == {"math"}
    wrong = [
        (item.id, item.gold)
        for item in items
        if not _correct(f"\\boxed{{{item.gold}}}", item.gold, "math")
    ]
    assert wrong == []
