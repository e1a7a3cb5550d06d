"""The tables of docs/results/actions.md count what their heads say."""

from __future__ import annotations

from typing import Any

import pytest
import stopping_tables


def test_stops_of_texts_that_end_are_counted_alone() -> None:
    alone = {"dataset": "hard", "detector": "none", "action": "none", "finished": 198}
    # Of 200 texts two are cut at the cap; of the others three are stopped.
    rows = [alone, alone | {"detector": "budget", "action": "stop", "finished": 195}]
    *_, line = stopping_tables.full(rows)
    assert line.startswith("| budget | 3 | 198 | ")
    upper = float(line.split("|")[4]) / 100
    chance = sum(_binomial(198, k, upper) for k in range(4))
    assert chance == pytest.approx(0.05, abs=0.002)


def _binomial(n: int, k: int, p: float) -> float:
    ways = 1.0
    for at in range(k):
        ways *= (n - at) / (at + 1)
    return ways * p**k * (1 - p) ** (n - k)


@pytest.mark.parametrize(
    ("name", "store", "rate"),
    [
        ("calibrated-cycle", "calibration", 0.005),
        ("calibrated-cycle-earlier-0.005", "earlier", 0.005),
        ("calibrated-cycle-demo-0.07", "demo", 0.07),
    ],
)
def test_the_name_of_a_part_says_what_was_asked(name: str, store: str, rate: float) -> None:
    assert stopping_tables.asked(name) == {"detector": "cycle", "store": store, "rate": rate}


def test_a_refusal_says_what_is_missing() -> None:
    row = {"detector": "cycle", "store": "demo", "rate": 0.005}
    refused = "lil: error: rate = 0.005: expected more problems: 598, and there are 48"
    *_, line = stopping_tables.calibrated([row | {"refused": refused}])
    assert line.startswith("| cycle | the demo's | 0.5% | refused: more problems: 598, and")


def test_what_differs_is_shown() -> None:
    row: dict[str, Any] = {"detector": "stall", "how": "fed", "traces": 9, "verdicts": 2}
    assert stopping_tables.live([row | {"differ": []}])[-1] == "| stall | fed | 9 | 2 | 9 |"
    lines = stopping_tables.live([row | {"differ": ["hard 7: live a, replayed b"]}])
    assert "| stall | fed | 9 | 2 | 8 |" in lines
    assert lines[-1] == "- `hard 7: live a, replayed b`"


def level(dataset: str, solved: int, lost: int, gained: int = 0) -> dict[str, Any]:
    share = {"estimate": lost / solved, "low": 0.05, "high": 0.4}
    names = ("dataset", "solved", "lost", "gained", "lost_share")
    return dict(zip(names, (dataset, solved, lost, gained, share), strict=True))


def test_answers_are_counted_by_level_among_texts_that_differ() -> None:
    row = {"levels": [level("easy", 20, 0, 1), level("hard", 40, 4)], "spared_cut": 30}
    row |= {"wasted_cut": 40, "wasted_ended": 0, "spared_ended": 0}
    heads = ("lost", "gained", "lost, by level", "W spared, cut, %", "W spared, ended, %")
    *_, line = stopping_tables.table([row], heads)
    assert line == "| 4 of 60 | 1 | easy 0 of 20, hard 4 of 40: 10 [5, 40]% | 75 | - |"


def test_what_was_not_measured_again_stays() -> None:
    before = {"cost": {"rows": []}, "greedy-2": [1], "conditions": {"greedy-2": {"limit": 3}}}
    kept = dict.fromkeys(stopping_tables.KEPT) | {"detector": "cycle", "action": "stop"}
    swept = {"stopping": [kept | {"penalty": "none"}]}
    swept["manifest"] = {"config": {"split": "heldout", "limit": 4, "datasets": ["easy"]}}
    counts = kept | dict.fromkeys(stopping_tables.COUNTED, 7)
    measured = {"greedy-4": swept, "readings-greedy-4": {"detectors": [counts]}}
    found = stopping_tables.taken(measured, before)
    assert (found["cost"], found["greedy-2"]) == (before["cost"], [1])
    assert found["greedy-4"][0]["stated_right"] == 7
    assert found["conditions"]["greedy-2"] == {"limit": 3}
    assert found["conditions"]["greedy-4"]["limit"] == 4
