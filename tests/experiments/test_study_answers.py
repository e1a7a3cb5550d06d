"""What endings and penalties do to answers in the study: by hand, by problem, by other means."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comparisons
import pytest
import study_penalties
import study_readings
from recomputing_study import comparing, penalised
from study_worlds import FULL, text

from experiments.reasoner import problem
from experiments.report.bootstrap import Bootstrap
from experiments.store.store import Store

SMALL = Path(__file__).parent / "data" / "small"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of four easy problems under three methods."""
    return Path(shutil.copytree(SMALL, tmp_path_factory.mktemp("answers") / "small"))


def test_texts_that_end_where_a_value_first_stands_by_hand() -> None:
    end = comparisons.ANSWERING
    some = [
        ("a", text(0, 100, FULL[:2], first_stated=50).at[8]),
        ("a", text(0, 100, FULL[:2], first_stated=20, first_is_right=False).at[8]),
        ("a", text(0, 100, FULL[:2], first_stated=95).at[8]),
        ("b", text(1, 100, FULL[:2]).at[8]),  # never states it, and is solved as it is
    ]
    found = comparisons.ended_at_first(some, Bootstrap(0, 100))
    assert (found["texts"], found["reached"], found["lost"], found["gained"]) == (4, 3, 1, 0)
    # An answer's tokens behind the third do not fit before the text's own end.
    assert found["saved"]["estimate"] == (400 - 200 - 50 - 20 - 2 * end) / 400
    assert found["solved"]["estimate"] == pytest.approx(3 / 4)
    assert found["p"] == 1.0  # one problem that differs


def test_texts_of_one_problem_are_one_to_the_tests() -> None:
    """Thirty-two texts of eight problems, all lost: by text p is 2 in 2^32, by problem 2 in 2^8."""
    texts = [
        (f"{item}", text(item, 100, FULL[:2], first_stated=50, first_is_right=False).at[8])
        for item in range(8)
        for _ in range(4)
    ]
    assert comparisons.ended_at_first(texts, Bootstrap(0, 100))["p"] == 2 / 2**8
    lost = dataclasses.replace(texts[0][1], end="wrong")
    sides = [(item, lost, one) for item, one in texts]
    assert study_penalties.beside(sides, Bootstrap(0, 100))["p"] == 2 / 2**8
    again: Any = [
        SimpleNamespace(problem=item, tokens=100, solved=True, stated=((50, 7),), answer=8)
        for item, _ in texts
    ]
    assert comparing.ended_at_first(again)["p"] == 2 / 2**8
    gone: Any = SimpleNamespace(tokens=90, solved=False, cut=False, classes={"loop": 0})
    for one in again:
        one.cut, one.classes = False, {"loop": 0}
    assert penalised._beside([(gone, one) for one in again])["p"] == 2 / 2**8


def test_penalties_by_other_means(small: Path) -> None:
    (told,) = study_readings.read_stores([small], worlds=2)["penalties"]
    store, mine = Store(small), {}
    for record in store:
        meta = record.meta
        if meta.get("detector") is None and record.trace() is not None:
            name = meta["cell"]["backend"]["name"]
            mine[name, bool(meta["cell"]["penalties"]), meta["item_id"]] = record.trace()
    full = {item: trace.tokens for (name, with_it, item), trace in mine.items()
            if name == "full" and not with_it}  # fmt: skip
    plain, less = (
        sum(min(trace.tokens, 2 * full[item]) for (name, its, item), trace in mine.items()
            if name in ("h2o", "quest") and its is with_it)
        for with_it in (False, True)
    )  # fmt: skip
    assert told["parameters"][0]["alpha"] == 1.0
    assert (told["n"], told["full"]["n"]) == (8, 4)
    assert told["saved"]["estimate"] == pytest.approx((plain - less) / plain)

    def solves(item: str, trace: Any) -> bool:
        level, split, index = item.split("/")
        box = b"\\boxed{" + problem(level, split, int(index)).answer.encode() + b"}"
        ended = trace.finish == "eos" and trace.tokens <= 2 * full[item]
        return ended and box in b"".join(trace.pieces).replace(b" ", b"")

    for names, told_of in ((("full",), told["full"]), (("h2o", "quest"), told)):
        pairs = [
            (solves(item, trace), solves(item, mine[name, False, item]))
            for (name, its, item), trace in mine.items()
            if name in names and its
        ]
        assert told_of["solved"] == sum(before for _, before in pairs) > 0
        assert told_of["lost"] == sum(before and not after for after, before in pairs) > 0
    assert not told["same_bound"]
