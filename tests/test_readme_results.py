"""What the README says of the demo is said by rule."""

from __future__ import annotations

from typing import Any

import pytest
import readme_results


def row(**fields: Any) -> dict[str, Any]:
    names = ("length_ratio", "length_ratio_solved", "keys_read_per_solved_ratio")
    values: dict[str, Any] = {"backend": "h2o", "budget": 64, "dataset": "easy", "detector": "none"}
    for name in names:
        values |= {name: 1.0, f"{name}_low": 0.9, f"{name}_high": 1.1}
    return values | {"capped": 0, "solved_by_both": 32} | fields


def told(**fields: Any) -> str:
    return "\n".join(readme_results.readings([row(**fields)]))


@pytest.mark.parametrize(
    ("name", "low", "high", "said"),
    [
        (
            "length_ratio_solved",
            1.01,
            1.2,
            "solve, 6 or more, 1 of 1: `h2o` 64 on easy 1.00 [1.01, 1.20]",
        ),
        ("length_ratio", 0.8, 0.99, "at the cap, 1 of 1: `h2o` 64"),
        ("length_ratio", 1.01, 1.2, "Longer output: `h2o` 1 of 1"),
        ("keys_read_per_solved_ratio", 0.8, 0.99, "full attention: `h2o` 1 of 1"),
    ],
)
def test_a_whole_interval_on_one_side_is_told(
    name: str, low: float, high: float, said: str
) -> None:
    assert said in told(**{f"{name}_low": low, f"{name}_high": high})
    assert said not in told()
    assert said not in told(**{f"{name}_low": None, f"{name}_high": None})
    touching = {"low": 1.0} if low > 1 else {"high": 1.0}
    assert said not in told(**{f"{name}_{side}": value for side, value in touching.items()})


def test_few_problems_make_nothing_clear() -> None:
    longer = {"length_ratio_solved_low": 1.1}
    assert "or more, 1 of 1" in told(**longer, solved_by_both=6)
    assert "or more, 0 of 1: none" in told(**longer, solved_by_both=5)


def test_what_was_cut_is_not_called_shorter() -> None:
    short = {"length_ratio_low": 0.8, "length_ratio_high": 0.9}
    assert "at the cap, 1 of 1" in told(**short)
    assert "at the cap, 0 of 1: none" in told(**short, capped=1)


def stopping_row(detector: str, **fields: Any) -> dict[str, Any]:
    share = {"estimate": 0.9, "low": 0.88, "high": 0.92}
    net = {"estimate": -0.002, "low": -0.004, "high": 0.0}
    values = {"detector": detector, "action": "stop", "loops": share, "tails": share, "net": net}
    counts = {"lost": 3, "gained": 3, "samples": 10000, "problems": 9, "solved": 80, "cells": 4}
    return values | counts | {"losing": []} | fields


def test_the_papers_detector_and_ours_stand_beside_each_other() -> None:
    paper, demo, ours = readme_results.SHOWN
    cells = stopping_row(ours, losing=["h2o 256 on hard"])
    wide = stopping_row(demo, net={"estimate": 0.0, "low": -0.006, "high": 0.006})
    rows = [stopping_row(paper), wide, stopping_row("stall"), cells]
    others = [stopping_row(name, action="answer") for name in readme_results.SHOWN]
    told = readme_results.stopping({"greedy-2": rows, "greedy-4": others})
    table = [line for line in told if line.startswith("| `")]
    assert [line.split("|")[1].strip() for line in table[:3]] == [
        f"`{paper}`, the paper's",
        f"`{demo}`, the demo's",
        f"`{ours}`, ours",
    ]
    assert [line.split("|")[-2].strip() for line in table] == ["yes", "no", "no", *["yes"] * 3]
    assert "10,000 sparse traces of 9 problems; 80 of the traces are solved" in told[0]
    with pytest.raises(RuntimeError, match=r"has no guardian\(f=250"):
        readme_results.stopping({"greedy-2": rows[1:], "greedy-4": others})
