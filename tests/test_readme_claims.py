"""What README says in words of the demo and the shipped model, against what was measured.

A test whose claim README words without a number holds the claim itself.
"""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import records
from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[1]
README = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    read = runpy.run_path(str(ROOT / "scripts" / "pages" / "records.py"))["read"]
    return read(ROOT / "docs" / "demo.json")["rows"]


@pytest.fixture(scope="module")
def sparse(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    plain = [row for row in rows if row["detector"] == "none"]
    return [row for row in plain if row["role"] == "method" and row["budget"] is not None]


@pytest.fixture(scope="module")
def readings() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "readings.json").read_text())


def said(number: str, computed: str) -> None:
    """README gives the number in these words, and it is the one computed."""
    assert set(re.findall(number, README)) == {computed}


def numbers(sentence: str) -> list[float]:
    return [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*\.?\d*", sentence)]


@pytest.fixture(scope="module")
def again() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "replicated.json").read_text())


def test_claims_are_made_on_other_problems(again: dict[str, Any]) -> None:
    fates = [one["fate"] for one in again["claims"]]
    said(r"\((\d+ of \d+) claims are made", f"{fates.count('holds')} of {len(fates)}")
    assert "none is reversed" in README
    assert "reversed" not in fates
    assert set(fates) == {"holds", "same side", "other side"}
    said(r"on (\d+) other problems", str(again["limit"] * len(again["datasets"])))


def test_an_oracles_choice_costs_next_to_nothing(
    rows: list[dict[str, Any]], again: dict[str, Any]
) -> None:
    assert "choice of 16 tokens nothing gets longer and nothing is lost here" in README
    study = records.read(ROOT / "docs" / "study_results.json")
    at = study["chosen"]["levels"]["hard"]["at"]["8"]["rows"]
    lost = {row["budget"]: row["against_full"] for row in at if row["backend"] == "oracle"}
    said(r"of (\d+) hard ones", str(lost[16]["solved_other"]))
    said(r"it loses (\d+), and", str(lost[16]["lost"]))
    said(r"with 96 tokens (\d+)\]", str(lost[96]["lost"]))
    said(r"and (\d+ of \d+) others", "{} of {}".format(*again["controls"]["oracle 16"]))
    said(r"it solves (\d+ of \d+) problems here", "75 of 75")
    moved = [one for one in again["claims"] if one["of"][1] == "oracle"]
    assert {one["claim"] for one in moved} == {"fewer keys"}
    oracle = [row for row in rows if row["backend"] == "oracle" and row["detector"] == "none"]
    assert [row["budget"] for row in oracle] == [16] * 3
    for row in oracle:
        assert row["solved_lost"] == 0
        assert not row["claims"] or row["claims"] == ["fewer keys"]
        assert row["length_ratio"] == pytest.approx(1, abs=0.005)


def test_where_outputs_are_shorter_most_give_up(
    sparse: list[dict[str, Any]], readings: dict[str, Any]
) -> None:
    assert "where small budgets make outputs shorter, most give up" in README
    shorter = [row for row in sparse if "shorter" in row["claims"]]
    assert shorter
    for row in shorter:
        name = f"{row['backend']} {row['budget']} on {row['dataset']}"
        assert readings["gave_up"][name] > 0.5, name


def test_the_papers_two_reasons_are_counted(readings: dict[str, Any]) -> None:
    assert "failing runs go on, and a right answer that was already written is changed" in README
    sentences = readings["sentences"]
    cut, wrong, solved = map(int, re.findall(r"(\d+)% (?:lie|in)", sentences["longer"])[:3])
    assert cut + wrong > 80 > 20 > solved
    assert numbers(sentences["once_right"])[0] > 50


def test_half_of_every_text_comes_after_its_answer(readings: dict[str, Any]) -> None:
    assert "Half of every text comes after its answer" in README
    at = numbers(readings["sentences"]["full"])[:3]
    assert all(0.45 < one < 0.55 for one in at)
    assert "taking the first value stated would be right more often" in README
    first, _, last, answered = numbers(readings["sentences"]["first"])[:4]
    assert first > last > answered


def test_guardian_cannot_gain_under_stop(rows: list[dict[str, Any]]) -> None:
    assert "Guardian cannot gain an answer under `stop` here" in README
    watched = [row for row in rows if (row["detector"], row["action"]) == ("guardian", "stop")]
    assert sum(row["fired"] for row in watched) > 100
    assert all(row["detector_solved_gained"] == 0 for row in watched)


def test_what_is_looked_for_is_a_part_of_what_is_lost(readings: dict[str, Any]) -> None:
    assert "a part of what failing texts spend after their last right value" in README
    loops, tails = map(int, re.findall(r"(\d+)%", readings["sentences"]["wasted"]))
    assert loops < tails < 60


def test_what_the_model_was_taught_is_said() -> None:
    training = (ROOT / "scripts" / "training" / "reasoner_training" / "training.py").read_text()
    assert "forget=0.02" in training
    said(r"\((\d+)% of settled values", "2")
    said(r"It has ([\d.]+) million parameters", "2.3")
    folder = ROOT / "experiments" / "reasoner" / "checkpoint"
    with safe_open(folder / "model.safetensors", "pt") as file:
        count = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    assert f"{count / 1e6:.1f}" == "2.3"


def test_tokens_of_training() -> None:
    folder = ROOT / "experiments" / "reasoner" / "checkpoint"
    tokens = json.loads((folder / "training.json").read_text())["tokens"]
    said(r"trained on ([\d.]+) million tokens", f"{tokens / 1e6:.0f}")
