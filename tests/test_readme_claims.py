"""What README says in words of the demo and the shipped model, against what was measured.

A test whose claim README words without a number holds the claim itself.
"""

from __future__ import annotations

import json
import re
import runpy
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    read = runpy.run_path(str(ROOT / "scripts" / "records.py"))["read"]
    return read(ROOT / "docs" / "demo.json")["rows"]


@pytest.fixture(scope="module")
def sparse(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["budget"] is not None and row["detector"] == "none"]


def said(number: str, computed: str) -> None:
    """Where README gives a number in these words, it is the one computed."""
    assert set(re.findall(number, README)) <= {computed}


def test_outputs_get_longer_up_to(sparse: list[dict[str, Any]]) -> None:
    most = max(row["length_ratio"] for row in sparse)
    said(r"longer, up to ([\d.]+) times", f"{most:.1f}")
    assert most > 1.5
    longest = defaultdict(float)
    for row in sparse:
        longest[row["backend"]] = max(longest[row["backend"]], row["length_ratio_low"])
    assert all(low > 1 for low in longest.values()), "for every backend"


def test_those_that_keep_accuracy_are_hardly_longer(sparse: list[dict[str, Any]]) -> None:
    kept = [r for r in sparse if r["accuracy_change_p"] is None or r["accuracy_change_p"] >= 0.05]
    longer = [row["length_ratio"] for row in kept if row["length_ratio_low"] > 1]
    assert 0 < len(longer) < len(kept) / 2
    said(r"none by more than ([\d.]+)", f"{max(longer):.1f}")


def test_the_smallest_budgets_are_shorter(sparse: list[dict[str, Any]]) -> None:
    least = min(row["budget"] for row in sparse)
    sink = [row for row in sparse if row["budget"] == least and row["backend"] == "sink"]
    assert len(sink) == 3
    assert all(row["length_ratio_high"] < 1 for row in sink)
    assert min(row["length_ratio"] for row in sink) < 0.2


def test_keys_per_solved_problem(sparse: list[dict[str, Any]]) -> None:
    ratios = defaultdict(list)
    for row in sparse:
        ratios[row["backend"]].append(row["keys_read_per_solved_ratio"])
    cheaper = {
        backend: sum(ratio is not None and ratio < 1 for ratio in found) / len(found)
        for backend, found in ratios.items()
    }
    assert cheaper["quest"] == 0.5
    assert cheaper["infllm"] == 0.25
    assert 0 < cheaper["h2o"] < 0.25
    assert cheaper["sink"] == 0
    assert min(ratio for ratio in ratios["quest"] if ratio is not None) == pytest.approx(
        0.75, abs=0.03
    )


def test_what_guardian_costs_and_gains(rows: list[dict[str, Any]]) -> None:
    watched = [row for row in rows if row["detector"] == "guardian"]
    full = [row for row in watched if row["backend"] == "full"]
    assert full
    assert all(row["detector_solved_lost"] == 0 for row in full)
    assert sum(row["detector_solved_lost"] for row in watched) > 0
    assert all(row["detector_solved_gained"] == 0 for row in watched)

    def cheaper(detector: str) -> int:
        ratios = [
            row["keys_read_per_solved_ratio"]
            for row in rows
            if row["detector"] == detector and row["budget"] is not None
        ]
        return sum(ratio is not None and ratio < 1 for ratio in ratios)

    assert cheaper("guardian") <= cheaper("none")


def test_tokens_of_training() -> None:
    folder = ROOT / "experiments" / "reasoner" / "checkpoint"
    tokens = json.loads((folder / "training.json").read_text())["tokens"]
    said(r"trained on ([\d.]+) million tokens", f"{tokens / 1e6:.0f}")
