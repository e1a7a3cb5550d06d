"""The page of real models: what is kept is what it shows, and what measures it can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measure_real_models
import pytest
import real_models_tables
import records

from experiments.cli import main


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "gsm8k_test.jsonl"
    lines = [{"question": f"What is {n} + 1?", "answer": f"So.\n#### {n + 1}"} for n in range(3)]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_every_part_is_a_sweep_that_can_be_asked_for(
    tiny_model: Path,
    problems: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(measure_real_models, "_file", lambda _: str(tiny_model))
    names = []
    for part in measure_real_models.parts(tmp_path, problems):
        names.append(part.name)
        if part.name == "cold-start":
            continue  # no sweep; it fetches
        at = part.command.index("sweep")
        assert main([*part.command[at:], "--dry-run"]) == 0, part.name
        asked = json.loads(capsys.readouterr().out)["config"]
        assert asked["dtype"] == ("float32" if asked["weights"] == "int8" else "bfloat16")
        assert asked["cap"] == str(asked["max_new_tokens"])
    assert len(names) == len(set(names)) > 10


def test_what_was_measured_becomes_tables(
    tiny_model: Path,
    problems: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(measure_real_models, "_file", lambda _: str(tiny_model))
    monkeypatch.setattr(measure_real_models, "FEW", 2)
    monkeypatch.setattr(measure_real_models, "MANY", 2)
    wanted = ("smollm2-greedy", "table", "penalties-smollm2-0.6")
    folder = tmp_path / "real"
    (folder / "measured").mkdir(parents=True)
    for part in measure_real_models.parts(folder, problems):
        if part.name in wanted:
            at = part.command.index("sweep")
            short = ["--max-new-tokens", "40", "--cap", "40", "--limit", "2"]
            for name in ("quest", "oracle", "h2o"):  # a model of two layers
                short += ["--set", f"backend_params.{name}.dense_layers=0"]
            assert main([*part.command[at:], *short]) == 0
            (folder / "measured" / f"{part.name}.json").write_text(capsys.readouterr().out)
    kept = real_models_tables.taken(folder, {"older": {"rows": [], "cap": "1"}})
    assert set(kept) == {*wanted, "older"}
    # What is written is what is read.
    records.write(tmp_path / "kept.json", kept)
    again = records.read(tmp_path / "kept.json")
    del again["older"]
    page = "\n".join(line for part in real_models_tables.SECTIONS for line in part(again))
    for told in ("h2o 192", "oracle 256", "random 192 with the prompt", "full attention again",
                 "`cycle`", "lz(alpha=0.05)", "T 0.6", "of 2"):  # fmt: skip
        assert told in page, told


def test_a_number_stands_with_its_interval() -> None:
    row: dict[str, Any] = {"x": 0.5, "x_low": 0.25, "x_high": 0.75, "y": None, "z": 2.0}
    assert real_models_tables.number(row, "x", ".0f", 100) == "50 [25, 75]"
    assert real_models_tables.number(row, "y") == ""
    assert real_models_tables.number(row, "z") == "2.00"


@pytest.mark.parametrize(
    ("ratio", "p", "null", "told"),
    [
        ((1.2, 1.1, 1.3), 0.01, 1.0, "longer"),
        ((0.8, 0.7, 0.9), 0.01, 1.0, "shorter"),
        ((1.2, 1.1, 1.3), 0.06, 1.0, "open"),  # Holm takes it back
        ((1.2, 0.99, 1.4), 0.04, 1.0, "open"),  # the interval does
        ((1.2, 1.1, 1.3), 0.01, 1.25, "no more than the null"),
        ((1.2, 1.1, 1.3), 0.01, 0.8, "no more than the null"),
        ((1.01, 0.97, 1.04), 0.5, 1.0, "within 5%"),
        ((1.01, 0.94, 1.04), 0.5, 1.0, "open"),
        ((1.5, None, None), 0.01, 1.0, "too few differ"),
        ((None, None, None), 1.0, 1.0, "too few differ"),
    ],
)
def test_only_what_the_plan_lets_be_said_is_said(
    ratio: tuple[float | None, ...], p: float, null: float, told: str
) -> None:
    names = ("length_ratio_solved", "length_ratio_solved_low", "length_ratio_solved_high")
    row = dict(zip(names, ratio, strict=True))
    assert real_models_tables.verdict(row, p, null) == told
