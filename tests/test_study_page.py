"""The study's pages show the numbers that are kept, and those come from the kept traces."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import lean_stores
import pytest
import records
import study_advice
import study_figures
import study_rules
import study_selecting
import study_tables
from study_texts import Cell, cell_of

from experiments.store.study import Study

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "docs" / "study" / "traces"
FULL: Cell = ("full", None, False)
LEVELS = ("hard", "medium", "retold")


def kept() -> dict[str, Any]:
    return dict(records.read(study_tables.KEPT))


def test_the_pages_show_what_is_kept() -> None:
    assert study_tables.main(["--check"]) == 0
    assert len(study_tables.PAGE.read_text().splitlines()) < 600


def test_what_the_pages_point_at_is_there() -> None:
    for page in (study_tables.PAGE, study_tables.RESULTS):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), link


def test_figures_are_those_of_the_kept_numbers(tmp_path: Path) -> None:
    assert study_figures.main(["--into", str(tmp_path)]) == 0
    for figure in tmp_path.glob("*.svg"):
        drawn, shown = (
            re.findall(r">([^<>]+)</text>", one.read_text())
            for one in (figure, TRACES.parent / figure.name)
        )
        assert drawn, figure.name
        assert drawn == shown, figure.name  # every word and number in it


def test_the_first_sentence_is_said_by_its_rule() -> None:
    found = kept()
    level = found["chosen"]["levels"]["hard"]["at"]["8"]
    rows = study_rules.methods(level)
    assert len(rows) == 12
    lost = [row for row in rows if row["against_full"]["p_holm"] <= 0.05]
    longer = [row for row in rows if row["against_full"]["ratio_all"]["low"] > 1]
    page = study_tables.PAGE.read_text()
    said = f"**On this small model {len(lost)} of 12 cells (a method at a budget) lose answers and "
    assert f"{said}{len(longer)} write longer texts" in page
    assert study_selecting.worse_than_drawn(level) == ["sink"]
    assert "`sink` solves fewer problems than a random sample of as many tokens" in page


def test_only_quest_on_one_model_keeps_answers_and_costs_less() -> None:
    """The study says so where it says what to do."""
    good = [one for one in study_advice.judged(kept())
            if one.keeps and one.saves and not one.control]  # fmt: skip
    assert {(one.ground, one.backend) for one in good} == {(study_advice.GROUND, "quest")}
    assert "What kept the\nanswers and cost fewer keys was Quest, on one model:" in (
        study_tables.PAGE.read_text()
    )


def test_every_level_has_its_traces() -> None:
    assert kept()["chosen"]["levels"].keys() == set(LEVELS)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_the_kept_numbers_come_from_the_kept_traces(level: str, tmp_path: Path) -> None:
    told, store = kept()["chosen"]["levels"][level], tmp_path / level
    files = [str(one) for one in sorted(TRACES.glob(f"{level}-1000.*xz"))]
    assert lean_stores.main(["unpack", *files, str(store)]) == 0
    cells: dict[Cell, dict[str, Any]] = defaultdict(dict)
    for study in Study.each(store):
        for sample in study.samples([], texts=False).samples:
            cells[cell_of(sample)][sample.item_id] = sample
    rows = {(row["backend"], row["budget"], row["kept"]): row for row in told["at"]["8"]["rows"]}
    assert cells.keys() - {FULL} == rows.keys()
    for cell, row in rows.items():
        mine = cells[cell].values()
        solved = sum(bool(one.correct) for one in mine)
        assert row["n"] == len(mine), cell
        assert row["accuracy"]["estimate"] == solved / len(mine), cell
        assert row["tokens"] == sum(one.tokens for one in mine), cell
    full = told["full"]["8"]
    mine = cells[FULL].values()
    assert (full["n"], full["tokens"]) == (len(mine), sum(one.tokens for one in mine))
