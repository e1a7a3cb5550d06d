"""Problems of reasoning-gym: names, identities, scores; what a store says of them runs nothing.

Most of it with a package of that name that is made here, some, where it is installed, with the real
one.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeping import Make, go

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import data, gym, scoring
from experiments.grid.data import ProblemChoice
from experiments.grid.data.prompts import GYM_TEMPLATE
from experiments.grid.data.sets import expand, labels
from experiments.grid.identity import Configuration, run_id
from experiments.grid.presets import load
from experiments.store.study import Study

REAL = importlib.util.find_spec("reasoning_gym") is not None
NEEDS_GYM = pytest.mark.skipif(not REAL, reason="needs the extra `gym` (reasoning-gym)")

FACTORY = """
import random
from dataclasses import dataclass
from pathlib import Path

Path(__file__).with_name("ran").touch()
print("noise on standard output")
random.seed(7)


@dataclass
class Config:
    most: int = 9
    signs: tuple = ("+",)
    seed: int = None
    size: int = 6

    def validate(self):
        assert self.most > 1, "most must be above 1"


class Sums:
    def __init__(self, config):
        config.validate()
        self.config = config

    def __len__(self):
        return self.config.size

    def __getitem__(self, at):
        draw = random.Random(self.config.seed + at)
        a, b = draw.randrange(self.config.most), draw.randrange(self.config.most)
        random.random()
        return {"question": f"{a} + {b}", "answer": str(a + b), "metadata": {"sum": a + b}}

    def score_answer(self, answer, entry):
        if answer == "slow":
            while True:
                pass
        if answer == "near":
            return 0.99
        return 1.0 if int(answer) == entry["metadata"]["sum"] else 0.01


class Torn(Sums):
    def __getitem__(self, at):
        raise RuntimeError("no board fits")


DATASETS = {
    "sums": (Sums, Config),
    "torn": (Torn, Config),
    "codeio": (Sums, Config),
}
"""
EVALUATING = """
from .factory import Config, Sums, DATASETS

class Evaluated(Sums):
    def score_answer(self, answer, entry):
        return 1.0 if eval(answer) == entry["metadata"]["sum"] else 0.0

DATASETS["evaluated"] = DATASETS["countdown"] = (Evaluated, Config)
"""


def _package(site: Path, version: str) -> None:
    folder = site / "reasoning_gym"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import factory, evaluating\n")
    (folder / "factory.py").write_text(FACTORY)
    (folder / "evaluating.py").write_text(EVALUATING)
    about = site / f"reasoning_gym-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: reasoning-gym\nVersion: {version}\n")


def _forget() -> None:
    gym._generator.cache_clear()
    gym._problem.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the package of this test is, before any other of its name."""
    site = tmp_path / "site"
    _package(site, "9.1")
    monkeypatch.syspath_prepend(str(site))
    _forget()
    yield site
    _forget()


def _set(name: str, limit: int | None = None, **choice: Any) -> data.DataSet:
    return data.load_set(name, "study", limit, ProblemChoice(**choice))


# ---------------------------------------------------------------- names and problems


def test_a_name_is_kept_in_one_form() -> None:
    for typed in ("gym:sums(size=4,most=5)", "gym:sums( most = 5, size = 4, seed = 0 )"):
        assert expand([typed]) == ("gym:sums(most = 5, size = 4)",)
    assert expand(["gym:sums", "gym:sums()", "gym:sums(seed=0)"]) == ("gym:sums",)
    canonical = 'gym:sums(share = 0.5, signs = ["+", "/"])'
    assert expand([canonical]) == (canonical,)
    assert labels([canonical, "gym:sums", "a/sums.jsonl"]) == {
        canonical: canonical,
        "gym:sums": "gym:sums",
        "a/sums.jsonl": "sums",
    }
    config = load("demo-small", {"datasets": "gym:sums(most=5,size=4),easy"})
    assert config.datasets == ("gym:sums(most=5,size=4)", "easy")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gym:os.system", "gym:NAME"),
        ("gym:../x", "gym:NAME"),
        ("gym:__import__('os')", "gym:chain_sum"),
        ("gym:sums(", r"NAME\(PARAMETER=VALUE\)"),
        ("gym:sums(most=inf)", "numbers, texts"),
    ],
)
def test_what_is_no_name_is_refused_without_the_package(name: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        expand([name])
    assert "reasoning_gym" not in sys.modules


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gym:sum", "did you mean 'gym:sums'"),
        ("gym:sums(mots=4)", "parameters that sums takes .*mots"),
        ("gym:sums(most=1)", "most must be above 1"),
        ('gym:sums(most="many")', "parameters that sums takes .*TypeError"),
        ("gym:torn", "problem 0 can be made .*no board fits"),
        ("gym:codeio", "made by running code"),
        ("gym:evaluated", "it evaluates text, which nobody has checked for reasoning-gym 9.1"),
    ],
)
def test_what_the_package_has_not_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        _set(name)


def test_without_the_package_its_extra_is_named(monkeypatch, capsys) -> None:
    _forget()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert main(["sweep", "--dataset", "gym:sums", "--dry-run"]) == 2
    assert "the package `reasoning-gym` (`scripts/setup gym` installs it)" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.usefixtures("site")
def test_problems_are_the_same_each_time_and_draw_from_nobody(capsys) -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    result = _set("gym:sums(seed=3, size=4)")
    assert random.random() == expected
    assert capsys.readouterr().out == ""
    draws = [random.Random(3 + at) for at in range(4)]
    pairs = [(value.randrange(9), value.randrange(9)) for value in draws]
    assert [item.question for item in result.items] == [f"{a} + {b}" for a, b in pairs]
    assert [item.gold for item in result.items] == [str(a + b) for a, b in pairs]
    assert {item.scorer for item in result.items} == {"gym:sums(seed = 3, size = 4)"}
    assert result.items[0].message == GYM_TEMPLATE.format(problem=result.items[0].question)
    about = result.about()
    assert (about["reasoning_gym"], about["of"], about["template"]) == ("9.1", 4, GYM_TEMPLATE)
    assert _set("gym:sums(seed=3, size=4)", 2).items == result.items[:2]
    assert _set("gym:sums(size=4)").items[3].question == result.items[0].question  # 0 + 3 = 3 + 0
    (item,) = _set("gym:sums", 1, scorer="stated").items
    assert item.scorer == "stated"


def test_an_identity_follows_from_generator_parameters_seed_and_version(site: Path) -> None:
    def ids(name: str) -> str:
        return _set(name, 1).items[0].id

    names = ("gym:sums", "gym:countdown", "gym:sums(seed=1)", "gym:sums(most=8)")
    result = [ids(name) for name in names]
    assert len(set(result)) == len(names)
    assert all(value.partition("/")[2].startswith("9.1/") for value in result)
    cell = Configuration(
        "m", "d", "gym:sums", {"name": "full"}, (), {"temperature": 0.0}, "float32"
    )
    assert len({run_id(cell, value, "prompt", 0) for value in result}) == len(names)
    shutil.rmtree(site)
    _package(site, "9.2")
    _forget()
    assert ids("gym:sums") not in result


# ---------------------------------------------------------------- scores


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("text", "ended", "correct", "rule"),
    [
        ("<answer>{sum}</answer>", False, True, "the last <answer></answer>"),
        ("<answer> **{sum}** </answer>", True, True, "the last <answer></answer>"),
        ("The answer is {sum}.", True, True, 'the last "answer is"'),
        ("The answer is {sum}.", False, False, None),
        ("It makes {sum}", True, False, None),
        ("<answer>near</answer>", True, False, "the last <answer></answer>"),
        ("<answer>no number</answer>", True, False, "the last <answer></answer>"),
        ("<answer>slow</answer>", True, False, "the last <answer></answer>"),
    ],
)
def test_right_is_what_the_generator_gives_one_point(
    text: str, ended: bool, correct: bool, rule: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym, "LIMIT", 0.2)
    (item,) = _set("gym:sums", 1).items
    own = scoring.loaded(item.scorer)
    text = text.format(sum=item.gold)
    result = scoring.judged(text, item.gold, item.scorer, own, item=item.id, ended=ended)
    assert (result.correct, result.rule) == (correct, rule)
    assert scoring.judged(text, item.gold, item.scorer, item=item.id).correct is None
    score = "1.0" if correct else "less than 1.0"
    assert scoring.reason(result, item.gold, item.scorer).endswith(score)


@pytest.mark.usefixtures("site")
def test_an_answer_that_would_be_evaluated_is_of_harmless_characters(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    made = gym.generator("gym:countdown")
    sum_ = int(made.problem(0).answer)
    assert made.solves(f"{sum_} + 1 - 1", 0)
    for attack in (
        f"open({str(mark)!r}, 'w') and {sum_}",
        f"__import__('pathlib').Path({str(mark)!r}).touch() or {sum_}",
        f"{sum_}**1",
        f"{sum_}* *1",
        "9" * 201,
    ):
        assert not made.solves(attack, 0)
    assert not mark.exists()


# ---------------------------------------------------------------- stores


@pytest.fixture
def store(site: Path, tiny_config: Make, tmp_path: Path) -> Path:
    config = tiny_config(datasets="gym:sums(seed=3)", backends="full,sink", budgets="32", limit=3)
    outcome, _ = go(config, tmp_path / "out")
    assert outcome.counts.decoded == 6
    again, _ = go(config, tmp_path / "out")
    assert again.counts.decoded == 0
    _forget()
    (site / "reasoning_gym" / "ran").unlink()
    return tmp_path / "out"


def test_a_store_asks_no_generator_by_itself(store: Path, site: Path, capsys) -> None:
    assert main(["report", str(store), "--no-figures", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {row["accuracy"] for row in json.loads(out)["rows"]} == {None}
    assert "--scorer gym loads it" in " ".join(err.split())
    assert main(["replay", str(store), "--detector", "guardian"]) == 0
    assert main(["show", str(store), "0", "sink"]) == 0
    assert not (site / "reasoning_gym" / "ran").exists()
    assert "reasoning_gym" not in sys.modules


def test_asked_for_it_judges_and_says_by_which_rule(store: Path, site: Path, capsys) -> None:
    quiet = ["--no-figures", "--no-page", "--scorer", "gym"]
    assert main(["report", str(store), *quiet, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["accuracy"] for row in rows} == {0.0}
    assert (site / "reasoning_gym" / "ran").exists()
    assert main(["replay", str(store), "--detector", "guardian", "--scorer", "gym"]) == 0
    assert main(["show", str(store), "0", "sink", "--scorer", "gym"]) == 0
    assert "the generator's scorer gives no answer less than 1.0" in capsys.readouterr().out
    study = Study.open(store).judged_by("gym")
    assert {sample.correct for sample in study.samples([])} == {False}


def test_what_cannot_judge_a_store_is_named(store: Path, site: Path, capsys) -> None:
    command = ["--no-figures", "--no-page", "--scorer", "gym"]
    shutil.rmtree(site)
    _package(site, "9.2")
    _forget()
    assert main(["report", str(store), *command]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "version of reasoning-gym = '9.2': expected 9.1, which made the problems" in err
    shutil.rmtree(site)
    _package(site, "9.1")
    factory = site / "reasoning_gym" / "factory.py"
    factory.write_text(factory.read_text().replace("str(a + b)", "str(a - b)"))
    _forget()
    assert main(["report", str(store), *command]) == 2
    assert "answer of sums/9.1/" in " ".join(capsys.readouterr().err.split())


# ---------------------------------------------------------------- the real package


@NEEDS_GYM
def test_what_evaluates_answers_is_known_for_the_installed_version() -> None:
    import inspect

    from reasoning_gym.factory import DATASETS

    running = {
        name
        for name, (kind, _) in DATASETS.items()
        if gym.runs_code(Path(inspect.getfile(kind)).read_text("utf-8"))
    }
    assert running <= {*gym._EVALUATED, *gym._OWN_TEXT, *gym._REFUSED}
    assert gym._EVALUATED.keys() <= running
    assert gym._REFUSED.keys() <= DATASETS.keys()


@NEEDS_GYM
@pytest.mark.slow
def test_every_generator_takes_its_own_answers_and_runs_none(tmp_path: Path) -> None:
    from reasoning_gym.factory import DATASETS

    mark = tmp_path / "mark"
    attack = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    attacks = (attack, f"[{attack}]", f"[{attack} for _ in '1']", f"1 + ({attack} or 1)", "")
    for name in sorted(DATASETS.keys() - gym._REFUSED.keys()):
        made = gym.generator(f"gym:{name}(seed=5, size=2)")
        for at in range(2):
            problem = made.problem(at)
            if problem.answer != gym.ANY:
                assert made.solves(problem.answer, at), name
            for value in attacks:  # some scorers take for false whatever is not "true"
                made.solves(value, at)
            assert not mark.exists(), name
