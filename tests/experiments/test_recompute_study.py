"""The study's document, computed a second time by code that shares nothing with the first.

On a stored sweep every number agrees, and a number that is changed is named; and the reading of
prompts and texts by hand.
"""

from __future__ import annotations

import ast
import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import recompute_study
import study_readings
from recomputing import frames
from recomputing_study import facts, language
from recomputing_study.document import LEFT_OUT
from recomputing_study.texts import Reading, loop_at_end

from experiments.reasoner import problem

SMALL = Path(__file__).parent / "data" / "small"
CHECKS = Path(recompute_study.__file__).parent

Document = dict[str, Any]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of four easy problems under three methods."""
    return Path(shutil.copytree(SMALL, tmp_path_factory.mktemp("again") / "small"))


@pytest.fixture(scope="module")
def document(small: Path) -> Document:
    """What the study tells of it."""
    found: Document = json.loads(json.dumps(study_readings.read_stores([small], worlds=2)))
    return found


def compared(store: Path, document: Document, tmp_path: Path) -> int:
    """The exit code of the comparison."""
    file = tmp_path / "study.json"
    file.write_text(json.dumps(document))
    return recompute_study.main([str(store), "--document", str(file)])


def test_it_shares_no_code_with_the_packages() -> None:
    files = [CHECKS / "recompute_study.py", *(CHECKS / "recomputing_study").glob("*.py")]
    assert len(files) > 5
    imported = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    others = {"numpy", "scipy", "recomputing", "recomputing_study"}
    assert imported - set(sys.stdlib_module_names) == others


def test_nothing_of_the_packages_is_loaded(small: Path, document: Document, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps(document))
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import recompute_study\n"
        "code = recompute_study.main(sys.argv[2:])\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not roots & {'attention', 'lil', 'experiments', 'torch', 'transformers'}\n"
        "assert not [m for m in sys.modules.values()"
        " if 'scripts/measuring' in str(getattr(m, '__file__', ''))]\n"
        "raise SystemExit(code)"
    )
    run = [sys.executable, "-c", program, str(CHECKS), str(small), "--document", str(file)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_number_of_a_stored_sweep(
    small: Path, document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(small, document, tmp_path) == 0
    printed = capsys.readouterr().out
    left_out = [line for line in printed.splitlines() if line.startswith("not recomputed")]
    assert len(left_out) == len(LEFT_OUT)
    assert int(printed.splitlines()[-1].partition(" ")[0]) > 350
    assert printed.splitlines()[-1].endswith(" 0 disagreements")


AT = ("levels", "easy", "at", "2")
ROW = (*AT, "rows", 0)


@pytest.mark.parametrize(
    "path",
    [
        ("missing",),
        ("levels", "easy", "full", "2", "tokens"),
        ("levels", "easy", "full", "2", "classes", "derived"),
        ("levels", "easy", "full", "2", "per_solved", "keys", "estimate"),
        ("levels", "easy", "censored"),
        (*ROW, "classes", "lost"),
        (*ROW, "wrong_to_right"),
        (*ROW, "ceiling_saved", "estimate"),
        (*AT, "pooled", "longer", "estimate"),
        (*AT, "pooled", "shares", "derived", "high"),
        (*ROW, "cost", "byte_steps"),
        (*ROW, "against_full", "change", "high"),
        (*ROW, "against_full", "after_right", "estimate"),
        (*ROW, "against_full", "ratio_all", "p_holm"),
        (*ROW, "against_full", "excess", "longer_by_end", "cut"),
        ("detectors", 0, "right_before"),
        ("detectors", 1, "saved", "low"),
        ("detectors", 1, "p_holm"),
        ("levels", "easy", "full", "2", "ended_at_first", "saved", "estimate"),
        (*AT, "pooled", "ended_at_first", "reached"),
        ("penalties", 0, "saved", "estimate"),
        ("penalties", 0, "full", "lost"),
        ("penalties", 0, "p"),
    ],
    ids=lambda path: ".".join(map(str, path[-2:])),
)
def test_a_changed_number_is_named(
    path: tuple[str | int, ...],
    small: Path,
    document: Document,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed = copy.deepcopy(document)
    inside: Any = changed
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = inside[path[-1]] * 1.5 + 200
    assert compared(small, changed, tmp_path) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if "DISAGREES" in line]
    assert any(f"{path[-1]}: " in line for line in wrong)


def test_what_is_not_there_is_said(
    small: Path, document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(tmp_path / "nothing", document, tmp_path) == 2
    assert "nothing: expected the folder of a sweep" in capsys.readouterr().err
    asked = [str(small), "--document", str(tmp_path / "none.json")]
    assert recompute_study.main(asked) == 2
    assert "none.json" in capsys.readouterr().err


def test_words_and_rows_that_are_not_so_are_named(
    small: Path, document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy.deepcopy(document)
    at = changed["levels"]["easy"]["at"]["2"]
    at["rows"][1]["said"] = "longer"
    at["break_even"][0]["cheaper"] = [64]
    at["sparsity_free"] = [64]
    del changed["detectors"][0]
    assert compared(small, changed, tmp_path) == 1
    printed = capsys.readouterr().out
    for name in ("said", "break_even.cheaper", "sparsity_free", "detectors"):
        assert f"{name}: " in printed
    at["rows"].append(copy.deepcopy(at["rows"][0]))
    assert compared(small, changed, tmp_path) == 1
    assert "or twice" in capsys.readouterr().out


@pytest.mark.parametrize("level", ["easy", "hard", "retold", "long"])
def test_prompts_say_their_answers(level: str) -> None:
    for index in range(20):
        one = problem(level, "train", index)
        assert facts.asked(one.prompt) == (one.goal, int(one.answer))
        assert facts.values(one.prompt).keys() == one.fact_of.keys()


def test_what_a_line_is() -> None:
    assert language.read("Then Max, written. After Ivan, Max is 5.").kind == "derived"
    judged = "After Ella, Ben was 8? Ben doubles Ella. Ella is 5, twice makes 10, off."
    assert language.read(f"{judged} Wait, so Ben is 10.").kind == "checked"
    assert language.read("After Ella, Ella was Ella was 20?").kind == "other"
    assert language.read("Resume Ella, Ivan is 15, plus Max is not known.").part("wants") == "Max"


def test_what_a_text_does() -> None:
    pieces = ["<think>", "\n\n", "Now Ben, given. First, Ben is", " 4", ".", "\n\n"]
    pieces += ["Again Max, Ben is 4, twice. After Ben, Max is", " 8", ".", "\n\n"]
    pieces += ["After Ben, Max was 8? Max doubles Ben. Ben is 4, twice is 9, off. Wait, Max is"]
    pieces += [" 9", ".", "\n\n", "</think>", "\n\n", "The answer is \\boxed{", "9", "}.", "<eos>"]
    prompt = "Read these facts. Ben has 4. Max doubles Ben.\nTell how many books Max has.\n\n"
    trace = {
        "prompt_bytes": {"text": prompt, "encoding": "utf-8"},
        "pieces": {
            "text": "".join(pieces),
            "encoding": "utf-8",
            "lengths": [len(one) for one in pieces],
        },
        "new_ids": list(range(len(pieces))),
        "finish": "eos",
    }
    text = Reading("a", trace).within(100, {})
    assert (text.end, text.tokens, text.until, text.stated[-1]) == ("wrong", 20, 8, (12, 9))
    assert text.mends == {"right_to_wrong": 1, "wrong_to_right": 0, "wrong_to_wrong": 0}
    told = {name: count for name, count in text.classes.items() if count}
    assert told == {"asked": 2, "derived": 8, "mended": 4, "answer": 6}
    cut = Reading("a", trace).within(10, {})
    assert (cut.end, cut.solved, cut.until) == ("cut", False, 8)


def test_a_loop_is_what_only_repeats() -> None:
    assert loop_at_end([1, 2, 3, 4]) == 0
    assert loop_at_end([9, 1, 2, 1, 2, 1]) == 3
    assert loop_at_end([5, 5, 5]) == 2


def test_a_run_by_transformers_is_the_same_whether_or_not_its_runtime_is_named() -> None:
    cell = {"model": "m", "dataset": "hard", "backend": {"name": "full"}, "penalties": []}
    keys = {
        frames.key_of({**cell, **named}, "hard/test/0", "p", 0)
        for named in ({}, {"runtime": "transformers"})
    }
    assert len(keys) == 1
    assert frames.key_of({**cell, "runtime": "vllm"}, "hard/test/0", "p", 0) not in keys
