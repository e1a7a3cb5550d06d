"""The page of sparse attention in vLLM shows what was measured, and says no more."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import check_runtimes
import choice_ties
import pytest
import sparse_serving_page

import attention.methods

BUDGETS = ("128", "256")
KINDS = ("equal", "score tie", "traced choice", "untraced choice")


@pytest.fixture
def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sparse_serving_page.KEPT.read_text())
    return found


def test_the_page_shows_what_was_measured() -> None:
    assert sparse_serving_page.main(["--check"]) == 0


def test_what_parts_is_explained_or_said_not_to_be(kept: dict[str, Any]) -> None:
    found = kept["runtimes"]
    assert (found["tie"], found["choice_tie"]) == (check_runtimes.TIE, choice_ties.CHOICE_TIE)
    methods = {attention.methods.METHODS.spec(one).name for one in check_runtimes.METHODS if one}
    told = {tuple(method.split(" ")) for method in found["counts"]}
    assert told == {("full",), *((name, size) for name in methods - {"full"} for size in BUDGETS)}
    for method, of in found["counts"].items():
        assert sum(of[kind] for kind in KINDS) == 200, method
        assert of["parts"] == of["missing"] == of["cut"] == 0
        assert of["other_keys"] == of["other_answers"] == 0
        # Text that repeats itself has more choices at a tie than can be tried.
        assert of["untraced choice"] == 0 or method.startswith("infllm")
    for pair in found["pairs"]:
        assert pair["kind"] in KINDS
        assert pair["gap"] < found["tie"] or pair["choices"]["closest"] <= found["choice_tie"]
    page = " ".join(sparse_serving_page.PAGE.read_text().split())
    assert f"score alike to {found['tie']:.0e}".replace("e-0", "e-") in page
    assert found["choice_tie"] == 1e-6
    assert "to one part in a million" in page
    assert choice_ties.TRIED == 12
    assert "the first twelve choices" in page
    assert f"left out below {sparse_serving_page.FEWEST} solved" in page


def test_a_cost_of_few_solved_problems_is_not_told(kept: dict[str, Any]) -> None:
    found = copy.deepcopy(kept["runtimes"])
    for one in found["costs"]:
        one |= {"solved": 19, "keys_per_solved": 123456.0, "seconds_per_solved": 98.76}
    assert "98.76" not in sparse_serving_page.runtimes(found)
    for one in found["costs"]:
        one["solved"] = 20
    assert "98.76" in sparse_serving_page.runtimes(found)
    assert "123,456" in sparse_serving_page.runtimes(found)


def test_nothing_was_lost_under_churn(kept: dict[str, Any]) -> None:
    cells = {(one["attention"].partition("(")[0], one["prefix_caching"]) for one in kept["churn"]}
    assert cells == {(name, shared) for name in ("quest", "sink") for shared in (True, False)}
    for one in kept["churn"]:
        assert (one["requests"], one["lost"], one["left"], one["troubles"]) == (10_000, 0, 0, [])
        assert one["aborted"] > 500
        assert one["put_back"] > 1000


def test_faster_is_said_of_what_is_faster_in_every_turn(kept: dict[str, Any]) -> None:
    found = kept["steps"]
    told = sparse_serving_page.said(found)
    for name in ("sink", "quest"):
        own = [row for some in found["rows"].values() for row in some
               if (row["runtime"], row["policy"]) == ("vllm", name)]  # fmt: skip
        fast = [row["times_full"] for row in own if row["faster_in"] == row["turns"]]
        assert f"`{name}` is faster in every turn in {len(fast)} of {len(own)} cases" in told
        assert f"by {min(fast):.1f} to {max(fast):.1f} times" in told
    # Once slower in a single turn, a case is none in which it is faster.
    other = copy.deepcopy(found)
    for some in other["rows"].values():
        for row in some:
            row["faster_in"] = row["turns"] - 1
    told = sparse_serving_page.said(other)
    assert set(re.findall(r"in every turn in (\d+)", told)) == {"0"}


def test_a_measurement_of_churn_takes_the_place_of_the_same_one() -> None:
    tables = {"the runner's batch": 0}
    each = {"free": 9, "tables": tables, "put_back_with_room": 1, "put_back_without": 2}
    told = {
        "attention": "window(budget=64)", "prefix_caching": True, "growth_mib": 1.0, "free": 9,
        "troubles": [], "rounds": [each | {"requests": 5, "aborted": 1, "free": 7},
                                   each | {"requests": 9, "aborted": 2, "tables": {"a": 3}}],
    }  # fmt: skip
    text = f"words\n{json.dumps(told)}\n"
    one = sparse_serving_page.taken("churn", text, [])
    assert one == [
        {"attention": "window(budget=64)", "prefix_caching": True, "growth_mib": 1.0,
         "troubles": [], "requests": 9, "aborted": 2, "put_back": 3, "lost": 2, "left": 3}
    ]  # fmt: skip
    assert sparse_serving_page.taken("churn", text, one) == one
    other = [one[0] | {"prefix_caching": False}]
    assert len(sparse_serving_page.taken("churn", text, other)) == 2
