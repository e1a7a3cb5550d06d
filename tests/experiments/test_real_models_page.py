"""The page of real models: what is kept is what it shows, and what measures it can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measure_actions
import measure_real_models
import penalty_tables
import pytest
import real_models_tables
import real_results
import records
import salad_tables
import sparse_tables
import wording
from rich.console import Console

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
        if "sweep" not in part.command:  # reads stores again, or fetches
            assert part.refusal or part.name == "cold-start"
            continue
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
        if part.name in wanted and "sweep" in part.command:
            at = part.command.index("sweep")
            short = ["--max-new-tokens", "40", "--cap", "40", "--limit", "2"]
            for name in ("quest", "oracle", "h2o"):  # a model of two layers
                short += ["--set", f"backend_params.{name}.dense_layers=0"]
            assert main([*part.command[at:], *short]) == 0
            (folder / "measured" / f"{part.name}.json").write_text(capsys.readouterr().out)
    # Full attention, h2o and quest, and full attention again with noise, on two problems.
    assert measure_real_models._runs(folder / "measured" / "smollm2-greedy.json") == ", 8 runs"
    kept = real_results.taken(folder, {"older": {"rows": [], "cap": "1"}})
    assert set(kept) == {*wanted, "older"}
    # What is written is what is read.
    records.write(tmp_path / "kept.json", kept)
    again = records.read(tmp_path / "kept.json")
    del again["older"]
    page = "\n".join(line for part in real_models_tables.SECTIONS for line in part(again))
    for told in ("h2o 192", "oracle 256", "random 192 with the prompt", "full attention again",
                 "`cycle(outside=100)`", "lz(alpha=0.05)", "T 0.6", "of 2"):  # fmt: skip
        assert told in page, told


@pytest.mark.slow
def test_stores_that_are_read_again_become_tables(
    tiny_model: Path,
    problems: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every part behind the sweeps runs, on stores of one tiny model; what it cannot do it says."""
    monkeypatch.setattr(measure_real_models, "_file", lambda _: str(tiny_model))
    monkeypatch.setattr(measure_real_models, "_minilm", lambda: "text")
    folder, measured = tmp_path / "real", tmp_path / "real" / "measured"
    measured.mkdir(parents=True)
    short = ["sweep", "--preset", "paper", "--model", str(tiny_model), "--dataset", str(problems)]
    short += ["--max-new-tokens", "30", "--cap", "30", "--backend", "full", "--dtype", "float32"]
    short += ["--null", "none", "--no-figures", "--no-page"]
    for store in measure_real_models.STORES:
        assert main([*short, "--out", str(folder / store)]) == 0
    console = Console(stderr=True)
    for part in measure_real_models.parts(folder, problems):
        if part.refusal:
            measure_actions.measure(part, measured / f"{part.name}.json", console)
    kept = real_results.taken(folder, {})
    assert len(kept) == 8
    # Three problems are too few to hold a fifth out, or to promise anything.
    assert {*map(str, kept)} == {
        f"{kind}-{store}"
        for kind in ("chopper", "recalibrated")
        for store in measure_real_models.STORES
    }
    said = "\n".join(salad_tables.chopper(kept))
    assert said.count("Not to be had") == 2  # greedy ones; the others have no classifier
    assert "five or more of one data set" in said
    assert str(tmp_path) not in said
    assert "29 or more" in "\n".join(salad_tables.recalibrated(kept))


def test_a_chopper_stands_beside_the_papers() -> None:
    row = {
        "backend": "full", "traces": 9, "salad_traces": 2, "chunks": 80, "salad": 20,
        "accuracy": 0.875, "auroc": None, "chopped_salad": 2, "chopped_sound": 1,
    }  # fmt: skip
    kept = {"chopper-qwen-coder-0.5b-greedy": {"training": [row], "held_out": [row]}}
    page = "\n".join(salad_tables.chopper(kept))
    assert "| Qwen2.5-Coder-0.5B |  | held out | full | 9 | 2 | 80 | 20 | 87.5 |  | 2 / 1 |" in page
    assert "| 92.72 | 98.63 |" in page
    assert salad_tables.PAPER[0.6] == (91.42, 96.22)
    assert list(salad_tables.chopper({})) == []


def test_a_number_stands_with_its_interval() -> None:
    row: dict[str, Any] = {"x": 0.5, "x_low": 0.25, "x_high": 0.75, "y": None, "z": 2.0}
    assert wording.number(row, "x", ".0f", 100) == "50 [25, 75]"
    assert wording.number(row, "y") == ""
    assert wording.number(row, "z") == "2.00"


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
    assert sparse_tables.verdict(row, p, null) == told


def test_the_page_shows_what_is_kept() -> None:
    assert real_models_tables.main(["--check"]) == 0


def test_loops_that_chance_gives_are_not_told_apart() -> None:
    whole = {"model": "smollm2", "backend": "full", "backend_params": {}, "budget": None,
             "role": "method", "n": 200, "exact": 20, "counting": 10, "reworded": 1,
             "loops_here": 0, "loops_full": 0}  # fmt: skip
    alike = {**whole, "backend": "h2o", "budget": 128, "loops_here": 9, "loops_full": 12}
    fewer = {**whole, "backend": "quest", "budget": 128, "loops_here": 2, "loops_full": 20}
    part = {"temperature": 0.6, "loops": [whole, alike, fewer]}
    said = "".join(real_models_tables.short({"smollm2-drawn": part}))
    assert "under full attention 31 of 200" in said
    assert "under h2o 128 31, not told apart" in said
    assert "under quest 128 31, fewer" in said


def test_penalties_are_told_apart_from_none_problem_by_problem() -> None:
    plain = {"model": "smollm2", "penalty": "none", "n": 64, "degenerate": 20, "cut": 30,
             "solved": 9, "degenerate_gone": 0, "degenerate_new": 0, "lost": 0,
             "gained": 0}  # fmt: skip
    helps = {**plain, "penalty": "lz(alpha=0.3)", "degenerate": 5, "degenerate_gone": 15}
    harms = {**plain, "penalty": "dry(multiplier=2.0)", "solved": 0, "lost": 9, "degenerate_new": 3}
    kept = {
        f"penalties-smollm2-{at}": {
            "temperature": at, "dtype": "bfloat16", "weights": "stored", "cap": "768",
            "penalties": rows,
        }
        for at, rows in ((0.6, [plain]), (0.0, [plain, helps, harms]))
    }  # fmt: skip
    (said,) = penalty_tables.in_short(kept)
    assert (
        "20 at temperature 0.0, 20 at temperature 0.6 hold a block twenty times in a row." in said
    )
    assert "Of 2 penalties" in said
    assert "1 leave fewer (`lz(alpha=0.3)` at 0.0), 0 more, " in said  # 3 of 3 may be chance
    assert "1 lose answers (`dry(multiplier=2.0)` at 0.0), 0 gain some" in said
    assert said.endswith("(exact McNemar, Holm).")
    for part in kept.values():  # nothing can be lost of what is not solved
        part["penalties"] = [{**row, "solved": 0} for row in part["penalties"]]
    (none,) = penalty_tables.in_short(kept)
    assert "answers (" not in none
    assert none.endswith("Of 0 solved problems none can be seen to be lost.")
    for part in kept.values():
        part["penalties"] = [{**row, "solved": 9} for row in part["penalties"]]
    page = "".join(penalty_tables.penalties(kept))
    assert "| `lz(alpha=0.3)` | 5 / 30 / 9 |  |" in page


@pytest.mark.slow
def test_the_page_is_that_of_the_stored_texts() -> None:
    traces = real_models_tables.ROOT / "docs" / "results" / "traces"
    assert real_models_tables.main(["--traces", str(traces), "--check"]) == 0
