"""`lil acceptance`: the store's full texts, read under its methods or under others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweeping import json_of

import attention
import lil
from experiments.cli import main
from experiments.grid import models
from experiments.store.study import Study


@pytest.fixture(scope="module")
def store(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("acceptance") / "store"
    code = main([
        "sweep", "--preset", "demo", "--model", str(tiny_model), "--dataset", "easy", "--limit",
        "2", "--null", "none", "--backend", "full,quest,sink", "--budget", "32,64", "--cap", "60",
        "--out", str(folder), "--no-figures", "--no-page",
    ])  # fmt: skip
    assert code == 0
    return folder


def test_cells_of_the_store_are_read(store: Path, tiny_model: Path, capsys: Any) -> None:
    read = json_of(capsys, "acceptance", str(store))["rows"]
    assert [(row["backend"], row["budget"]) for row in read] == [
        ("quest", 32), ("quest", 64), ("sink", 32), ("sink", 64)
    ]  # fmt: skip
    model = models.load(models.find(str(tiny_model)), "float32", "cpu").model
    study = Study.open(store)
    (full,) = (cell for cell in study.plan.configurations if cell.is_full)
    traces = [study.store.get(run.id).trace() for run in study.plan.runs(full)]
    for row in read:
        if row["budget"] == 64:
            continue
        backend = attention.get(row["backend"], **row["params"])
        each = [lil.acceptance(model, [trace], backend)[0] for trace in traces]
        assert row["accepted"] == sum(own.accepted for own in each)
        assert row["steps"] == sum(trace.tokens - 1 for trace in traces)
        assert row["share"] == row["accepted"] / row["steps"]
        assert row["low"] <= row["share"] <= row["high"]


def test_each_model_reads_its_own_texts(tmp_path: Path, tiny_model: Path, capsys: Any) -> None:
    """Under a budget that is never reached each chooses all of them, and none of another's."""
    folder = tmp_path / "two"
    code = main([
        "sweep", "--preset", "demo", "--model", f"reasoner,{tiny_model}", "--dataset", "easy",
        "--limit", "2", "--null", "none", "--backend", "full,quest", "--budget", "4096", "--cap",
        "30", "--out", str(folder), "--no-figures", "--no-page",
    ])  # fmt: skip
    assert code == 0
    read = json_of(capsys, "acceptance", str(folder))["rows"]
    assert [row["model"] for row in read] == ["reasoner", str(tiny_model)]
    assert [row["share"] for row in read] == [1.0, 1.0]
    assert main(["acceptance", str(folder)]) == 0
    assert " model " in capsys.readouterr().out


def test_sampled_texts_are_refused(tmp_path: Path, tiny_model: Path, capsys: Any) -> None:
    folder = tmp_path / "sampled"
    sampled = main([
        "sweep", "--preset", "demo", "--model", str(tiny_model), "--dataset", "easy", "--limit",
        "1", "--null", "none", "--backend", "full,sink", "--budget", "32", "--cap", "20",
        "--temperature", "0.5", "--out", str(folder), "--no-figures", "--no-page",
    ])  # fmt: skip
    assert sampled == 0
    assert main(["acceptance", str(folder)]) == 2
    assert "greedy texts of full attention" in capsys.readouterr().err
