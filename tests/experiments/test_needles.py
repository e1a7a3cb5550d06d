"""Needles: the facts are where they should be and nowhere else, answers are judged exactly."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from reports import report_of
from sweeping import go
from synthetic_samples import sample, sparse

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import data, models
from experiments.grid.data.sets import expand
from experiments.grid.needles import Needles
from experiments.grid.scoring import judged
from experiments.report.charts import chart_sets
from experiments.report.figures import draw
from experiments.report.tables import every_grid


def test_a_name_has_one_form_and_wrong_parameters_are_refused() -> None:
    assert expand(["needles( tokens=512,count = 4 )"]) == ("needles(count = 4, tokens = 512)",)
    assert expand(["needles()", "needles(seed=0)"]) == ("needles",)
    for wrong in ("count=17", "count=0", "tokens=9", 'kind="web"', "depth=4", "seed=-1"):
        with pytest.raises(InvalidValue, match="parameters of needles"):
            expand([f"needles({wrong})"])
    with pytest.raises(InvalidValue, match="for the facts alone"):
        data.load_set("needles(count=16, tokens=256)", "study", 1)


@pytest.mark.parametrize("name", ["needles", "needles(count=4)", 'needles(kind="chain")'])
def test_each_fact_is_there_once_at_its_depth_and_the_question_does_not_give_it(name: str) -> None:
    tokenizer = models.load_tokenizer(models.find("reasoner"))
    items = data.load_set(name, "study", 5).items
    assert items == data.load_set(name, "study", 5).items
    parts = set()
    for at, item in enumerate(items):
        assert 4096 - 25 < len(item.prompt_ids(tokenizer)) <= 4096
        problem = Needles.of(name).problem(at)
        body, question = item.question.rsplit("\n\n", 1)
        facts, golds = [fact for _, fact in problem.facts], problem.answer.split(", ")
        depths = [int(depth) for depth in item.id.partition("@")[2].split(",")]
        for gold, depth in zip(golds, depths, strict=True):
            (fact,) = (x for x in facts if re.search(rf" {gold}\.|^Register {gold} ", x))
            assert body.count(fact) == 1
            assert gold not in question
            assert abs(body.index(fact) / len(body) - depth / 100) < 0.06
            parts.add(depth // 20)
        if "chain" in name:
            held = dict(re.findall(r"Register (\d+) holds (.*?)(?: holds)?\.", body))
            assert [name for name, what in held.items() if what in question] == golds[:1]
            assert all(held[b] == f"what register {a}" for a, b in pairwise(golds))
        for fact in facts:
            body = body.replace(fact, "")
        words = {*re.findall(r"\w+", " ".join([*facts, question]))} - {"The", "the", "of"}
        assert not re.search(r"\d", body)
        assert words.isdisjoint(re.findall(r"\w+", body))
    assert len(parts) == len({item.gold for item in items}) == 5


ONE, FOUR = "4821374", "4821374, 5551234, 9182736, 1203456"
ANSWERS = [
    (True, ONE, "<answer>4821374</answer>"),
    (True, ONE, "<think>5551234, or 4821374?</think>The number of Anna is **4821374**."),
    (True, ONE, "<think>5551234? No.</think>\n<answer> 4,821,374 </answer>"),
    (False, ONE, "<think>It is 4821374.</think><answer>5551234</answer>"),
    (False, ONE, "<answer>48213741</answer>"),
    (False, ONE, "<answer>4821374 or 5551234</answer>"),
    (False, ONE, "<answer>not 4821374</answer>"),
    (True, FOUR, "<answer>4821374, 5551234, 9182736, 1203456</answer>"),
    (True, FOUR, "<answer>1203456, 9182736, 5551234 and 4821374</answer>"),
    (True, FOUR, "The registers are 4821374, 5551234, 9182736 and 1203456."),
    (True, FOUR, "\\boxed{4821374}, \\boxed{5551234}, \\boxed{9182736}, \\boxed{1203456}"),
    (False, FOUR, "<answer>4821374, 5551234, 9182736</answer>"),
    (False, FOUR, "<answer>4821374, 5551234, 9182736, 12034561</answer>"),
    (False, FOUR, "<answer>4821374, 5551234, 9182736, 9182736</answer>"),
    (False, FOUR, "<answer>7777777, 4821374, 5551234, 9182736, 1203456</answer>"),
    (False, FOUR, "<answer>7777777</answer>"),  # the value that a chain's question names
    (False, FOUR, "<think>4821374, 5551234, 9182736, 1203456</think>Those are all."),
]


@pytest.mark.parametrize(("right", "gold", "text"), ANSWERS)
def test_every_needle_and_nothing_else_is_right(right: bool, gold: str, text: str) -> None:
    (item,) = data.load_set("needles", "study", 1).items
    assert judged(text, gold, item.scorer).correct is right


def test_a_report_has_what_is_found_by_depth(tmp_path: Path) -> None:
    run = {"dataset": "needles(count = 2)", "gold": "11, 22", "answer": "11, 22"}
    samples = [sample(f"{at}@5,95", **run) for at in range(4)]
    for at, answer in enumerate(("11, 22", "11", "11, 33", "222, 11")):
        samples.append(sparse(f"{at}@5,95", **(run | {"answer": answer, "correct": at == 0})))
    report = report_of(samples)
    (grid,) = (grid for grid in every_grid(report) if "by depth" in grid.title)
    assert [cell.value for cell in grid.lines[1].cells] == ["32", "100", "—", "—", "—", "25"]
    (panel,) = (sets := chart_sets(report))[0].chart("depths").panels
    assert [(point.x, point.y) for point in panel.lines[1].points] == [(0.1, 1.0), (0.9, 0.25)]
    assert "figure6-depths.svg" in {path.name for path in draw(report, sets, tmp_path)}
    assert not any("by depth" in grid.title for grid in every_grid(report_of([sample(0)])))


def test_a_sweep_over_needles_ends_in_a_report(tiny_config, tmp_path, capsys) -> None:
    names = 'needles(tokens=512),needles(kind="chain",count=2,tokens=512)'
    go(tiny_config(datasets=names, limit=2, backends="full,h2o", budgets="32"), tmp_path)
    assert main(["report", str(tmp_path), "--no-figures", "--no-page"]) == 0
    assert " ".join(capsys.readouterr().out.split()).count("needles found by depth") == 2
