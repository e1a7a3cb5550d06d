"""Fidelity beside lengths and answers: counts by hand, ranks by scipy, silence where it is due."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import acceptance_page
import acceptance_readings
import numpy as np
import pytest
from acceptance_readings import Measured
from scipy.stats import spearmanr

from experiments.cli import main
from experiments.store.study import Study


def cell(share: float, log: float, solved: float, role: str = "method", n: int = 40) -> Measured:
    draw = np.random.default_rng(round(1000 * share))
    steps = np.full(n, 100.0)
    logs = log + draw.normal(0, 0.01, n)
    about = {"backend": "quest", "budget": round(100 * share), "role": role}
    return Measured(
        about, np.round(steps * share), steps, logs, (draw.random(n) < solved).astype(float)
    )


def test_ranks_are_those_of_scipy_and_an_effect_is_said() -> None:
    cells = [cell(0.8, 0.4, 0.1), cell(0.9, 0.3, 0.4), cell(0.95, 0.1, 0.7), cell(0.99, 0.0, 1.0),
             cell(0.97, 0.05, 0.9)]  # fmt: skip
    found = acceptance_readings.told(cells)
    by_name = {one["with"]: one for one in found["correlations"] if one["of"] == "methods"}
    shares = [one.accepted.sum() / one.steps.sum() for one in cells]
    for name, other in (
        ("length_ratio", [one.logs.mean() for one in cells]),
        ("accuracy", [one.solved.mean() for one in cells]),
    ):
        assert by_name[name]["rho"] == pytest.approx(spearmanr(shares, other).statistic)
        assert by_name[name]["cells"] == 5
    assert "the more is solved" in acceptance_page.sentence(by_name["accuracy"])
    assert "the shorter the texts" in acceptance_page.sentence(by_name["length_ratio"])


def test_nothing_is_said_without_an_effect_or_with_few_cells() -> None:
    same = [cell(0.9 + at / 100, 0.1, 0.5) for at in range(5)]
    for one in acceptance_readings.told(same)["correlations"]:
        if one["low"] is not None and one["low"] <= 0 <= one["high"]:
            assert "nothing is said" in acceptance_page.sentence(one)
    few = acceptance_readings.told(same[:3])["correlations"]
    assert all("too few" in acceptance_page.sentence(one) for one in few)


def test_cells_that_hardly_both_solve_have_no_ratio() -> None:
    one = cell(0.9, 0.1, 0.5)
    one.logs[3:] = np.nan
    (row,) = acceptance_readings.told([one])["cells"]
    assert row["length_ratio"] is None
    assert row["solved_by_both"] == 3


def test_a_store_is_read_by_problem(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    code = main([
        "sweep", "--preset", "demo", "--dataset", "easy", "--limit", "3", "--null", "dither",
        "--backend", "full,quest,oracle(budget=16)", "--budget", "32", "--cap", "2x-full",
        "--out", str(folder), "--no-figures", "--no-page",
    ])  # fmt: skip
    assert code == 0
    study = Study.open(folder)
    found = acceptance_readings.measured(study, 2)
    names = [(one.about["backend"], one.about["role"]) for one in found]
    assert names == [("quest", "method"), ("oracle", "control")]
    samples: dict[tuple[str, str], Any] = {
        (one.backend, one.item_id): one for one in study.samples([]).samples
    }
    items = sorted({item for _, item in samples})[:2]
    for one in found:
        mine = [samples[one.about["backend"], item] for item in items]
        full = [samples["full", item] for item in items]
        assert one.solved.tolist() == [float(bool(sample.correct)) for sample in mine]
        assert one.steps.tolist() == [sample.tokens - 1 for sample in full]
        assert (one.accepted <= one.steps).all()


def test_the_page_shows_what_is_kept() -> None:
    assert acceptance_page.main(["--check"]) == 0


def test_what_the_oracle_misses_of_a_real_model_is_said() -> None:
    kept = json.loads(acceptance_page.KEPT.read_text())["qwen-coder-1.5b"]
    (oracle,) = (one for one in kept["cells"] if (one["backend"], one["budget"]) == ("oracle", 256))
    page = " ".join(acceptance_page.PAGE.read_text().split())
    assert f"with 256 keys, misses {100 * (1 - oracle['share'][0]):.1f}% of the tokens" in page
    assert kept["problems"] in (39, 40)
    assert "four correlations" in page
    assert len(kept["correlations"]) == 4
