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


@pytest.fixture
def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sparse_serving_page.KEPT.read_text())
    return found


def test_the_page_shows_what_was_measured() -> None:
    assert sparse_serving_page.main(["--check"]) == 0


def test_both_runtimes_part_at_ties_alone(kept: dict[str, Any]) -> None:
    found = kept["runtimes"]
    assert (found["tie"], found["choice_tie"]) == (check_runtimes.TIE, choice_ties.CHOICE_TIE)
    assert len(found["counts"]) == len(check_runtimes.METHODS)
    for method, of in found["counts"].items():
        assert of["equal"] + of["tie"] + of["choice"] + of["tied"] == 200, method
        assert of["parts"] == of["missing"] == of["other_keys"] == of["other_answers"] == 0
    for pair in found["pairs"]:
        closest = (pair["choices"] or {"closest": None})["closest"]
        assert pair["gap"] < found["tie"] or closest <= found["choice_tie"]
        # Only text that repeats itself has so many that none can be traced.
        assert pair["kind"] != "tied" or pair["method"].startswith("infllm")


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
    rows = [row for some in found["rows"].values() for row in some if row["runtime"] == "vllm"]
    for name in ("sink", "quest"):
        own = [row for row in rows if row["policy"] == name]
        fast = [row for row in own if row["faster_in"] == row["turns"]]
        assert f"`{name}` is faster in every turn in {len(fast)} of {len(own)} cases" in told
        assert all(row["times_full"] > 1 for row in fast)
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
