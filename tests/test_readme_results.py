"""What the README says of the demo is said by rule."""

from __future__ import annotations

from typing import Any

import pytest
import readme_results


def row(**fields: Any) -> dict[str, Any]:
    names = ("length_ratio", "length_ratio_solved", "keys_read_per_solved_ratio")
    values: dict[str, Any] = {"backend": "h2o", "budget": 64, "dataset": "easy", "detector": "none"}
    for name in names:
        values |= {name: 1.25, f"{name}_low": 1.1, f"{name}_high": 1.5}
    cap = {"factor": 2, "claims": [], "length_ratio": 1.2} | {
        f"{name}_{side}": 1.1 for name in names for side in ("low", "high")
    }
    told = {"role": "method", "claims": [], "caps": [cap], "solved_by_both": 32}
    return values | told | fields


def told(*rows: dict[str, Any]) -> str:
    return "\n".join(readme_results.readings(list(rows), 4))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("longer", "- Longer, 1 of 2: `h2o` 64 on easy 1.25 [1.10, 1.50]."),
        ("shorter", "- Shorter, 1 of 2: `h2o` 64"),
        ("longer solved", "- Longer where both solve, 1 of 2: `h2o` 64"),
        ("fewer keys", "- Fewer keys per solved problem, 1 of 2: `h2o` 64"),
        ("more keys", "- More keys per solved problem, 1 of 2: `h2o` 64"),
    ],
)
def test_what_is_claimed_is_told_and_nothing_else(word: str, said: str) -> None:
    """An interval clear of 1 alone is not a claim."""
    assert said in told(row(claims=[word]), row())
    assert said not in told(row(), row())
    assert told(row(), row()).count("0 of 2: none") == 8


def test_both_caps_are_told_and_controls_are_not() -> None:
    cap = row()["caps"][0] | {"claims": ["longer"]}
    said = told(row(caps=[cap]), row(role="control", claims=["longer"]))
    assert "- Longer, 0 of 1: none." in said
    assert "read at 2 times, the paper's cap:" in said
    assert "- Longer, 1 of 1: `h2o` 64 on easy 1.20 [1.10, 1.10]." in said


def test_bold_follows_the_claim() -> None:
    assert readme_results.ratio(row()) == "1.25 [1.10, 1.50]"
    assert readme_results.ratio(row(claims=["longer"])) == "**1.25 [1.10, 1.50]**"


def stopping_row(detector: str, **fields: Any) -> dict[str, Any]:
    share = {"estimate": 0.9, "low": 0.88, "high": 0.92}
    net = {"estimate": -0.002, "low": -0.004, "high": 0.0}
    values = {"detector": detector, "action": "stop", "loops": share, "tails": share}
    counts = {"samples": 10000, "differing": 9000, "problems": 9, "solved": 80, "cells": 4}
    words = dict.fromkeys(("spared_cut", "wasted_cut", "spared_ended", "wasted_ended"), 5)
    levels = [{"dataset": "hard", "solved": 70, "lost": 3, "gained": 3}]
    return values | counts | words | {"net_differing": net, "levels": levels, "losing": []} | fields


def test_the_papers_detector_and_ours_stand_beside_each_other() -> None:
    paper, demo, ours = readme_results.SHOWN
    cells = stopping_row(ours, losing=["h2o 256 on hard"])
    wide = stopping_row(demo, net_differing={"estimate": 0.0, "low": -0.012, "high": 0.01})
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
    assert (
        "10,000 sparse traces of 9 problems; 80 of the traces are solved, 70 of which differ"
        in told[0]
    )
    with pytest.raises(RuntimeError, match=r"has no guardian\(f=250"):
        readme_results.stopping({"greedy-2": rows[1:], "greedy-4": others})


def level(**fields: Any) -> dict[str, Any]:
    values = {"n": 25, "accuracy": 0.44, "capped": 10, "mean_tokens": 934.0}
    return row(**{"dataset": "hard", "keys_read_per_solved": 1e6, **values, **fields})


FULL = level(backend="full", budget=None, accuracy=1.0, capped=0)


def test_the_first_number_counts_configurations_that_read_less() -> None:
    def reading(mean: float, *claims: str, **fields: Any) -> dict[str, Any]:
        fields = {"keys_read_per_solved_ratio": 0.9, "budget": 128} | fields
        return level(keys_read_mean=mean, claims=list(claims), **fields)

    full = FULL | {"keys_read_mean": 500.0}
    rows = [
        full, reading(100.0, "fewer keys"), reading(100.0, "more keys"), reading(100.0),
        reading(100.0, keys_read_per_solved_ratio=None),
        reading(500.0, "fewer keys"),  # it reads all
        reading(100.0, "fewer keys", role="control"),
        reading(100.0, "fewer keys", detector="guardian"),
    ]  # fmt: skip
    said = readme_results.number(rows)
    assert "Of the demo's 5 configurations 4 read fewer keys per token than full" in said
    assert "fewer keys in 1 of these 4**, more in 1; 1 solve none" in said
    assert "was taught part of this" in said


def test_the_table_has_a_row_a_backend_at_one_budget() -> None:
    rows = [
        *(one | {"dataset": name} for name in ("easy", "hard") for one in (
            FULL, level(budget=128), level(budget=256, claims=["longer", "loses"]),
            level(backend="oracle", budget=16, role="control", keys_read_per_solved=None),
            level(budget=256, detector="guardian"),
        )),
    ]  # fmt: skip
    about, _, _, _, *lines = readme_results.overview(rows, 4)
    assert "easy / hard, 25 problems each, of which full attention takes 934 / 934 tokens" in about
    assert lines[1:] == [
        "| `h2o` | 256 | **44** / **44** | **1.25** / **1.25** | 1.25 / 1.25 |",
        "| `oracle`, a control | 16 | 44 / 44 | 1.25 / 1.25 | none solved / none solved |",
    ]
