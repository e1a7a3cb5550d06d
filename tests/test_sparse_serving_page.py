"""The page of sparse attention in vLLM shows what was measured, and says no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sparse_serving_page

BUDGETS = ("128", "256")
KINDS = ("equal", "score tie", "traced choice", "untraced choice")


@pytest.fixture
def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sparse_serving_page.KEPT.read_text())
    return found


def test_the_page_shows_what_was_measured() -> None:
    assert sparse_serving_page.main(["--check"]) == 0


def test_nothing_was_lost_under_churn(kept: dict[str, Any]) -> None:
    cells = {(one["attention"].partition("(")[0], one["prefix_caching"]) for one in kept["churn"]}
    assert cells == {(name, shared) for name in ("quest", "sink") for shared in (True, False)}
    for one in kept["churn"]:
        assert (one["requests"], one["lost"], one["left"], one["troubles"]) == (10_000, 0, 0, [])
        assert one["aborted"] > 500
        assert one["put_back"] > 1000


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
