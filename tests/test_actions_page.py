"""docs/actions.md: its example runs, its tables are what was found, and so are its sentences."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import actions_table
import pages
import pytest
import records

from lil.detectors import ACTIONS, names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "actions.md"
TEXT = re.sub(r"\s+", " ", PAGE.read_text())
FOUND = records.read(ROOT / "docs" / "actions.json")


@pytest.mark.slow
def test_the_example_runs() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-c", found[1]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "</think>\n\nThe answer is not known. eos {'name': 'answer'" in done.stdout


def test_every_detector_and_action_is_in_its_tables() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.M)
    assert sorted(rows) == sorted([*names(), *ACTIONS])


def test_it_is_short() -> None:
    assert len(PAGE.read_text().splitlines()) <= 120
    assert actions_table.short(FOUND["stopping"]).count("\n| ") == 1 + 1 + 8


def sweeps() -> list[dict[tuple[str, str], dict[str, Any]]]:
    """Each sweep's pooled rows by detector and action."""
    named = [rows for name, rows in FOUND["stopping"].items() if name.startswith("greedy-")]
    assert len(named) == 3
    return [{(row["detector"], row["action"]): row for row in rows} for rows in named]


def test_stop_gains_nothing() -> None:
    assert "`stop` gains no answer here" in TEXT
    stops = [row for sweep in sweeps() for (_, action), row in sweep.items() if action == "stop"]
    assert sum(row["fired"] for row in stops) > 1000
    assert all(row["gained"] == 0 for row in stops)


def test_answer_loses_no_more_and_saves_nearly_as_much() -> None:
    assert "`answer` loses no more answers than `stop` behind any detector, and saves" in TEXT
    for sweep in sweeps():
        for (detector, action), row in sweep.items():
            if action == "answer":
                stop = sweep[detector, "stop"]
                assert row["lost"] <= stop["lost"]
                assert stop["tokens"]["estimate"] - row["tokens"]["estimate"] < 0.01


def test_regenerate_and_densify_trade_tokens_for_answers() -> None:
    assert "`regenerate` behind Guardian loses fewer answers than `stop` and saves fewer" in TEXT
    assert "`densify` behind Guardian saves no tokens, reads more keys, and gains more" in TEXT
    rows = {
        row["action"]: row for row in FOUND["actions"]["pooled"] if row["detector"] == "guardian"
    }
    again, dense, stop = rows["regenerate"], rows["densify"], rows["stop"]
    assert again["lost"] < stop["lost"]
    assert again["tokens"]["high"] < stop["tokens"]["low"]
    assert dense["tokens"]["low"] < 0
    assert dense["tokens"]["estimate"] <= 0
    assert dense["gained"] > dense["lost"]
    assert dense["net"]["low"] < 0 < dense["net"]["high"]
    mine, plain = (
        [
            row for row in FOUND["actions"]["rows"]
            if (row["detector"], row["action"]) == watched and row["backend"] != "full"
        ]
        for watched in (("guardian", "densify"), ("none", "none"))
    )  # fmt: skip
    plain = actions_table.paired(mine, plain)
    assert actions_table.saved(mine, plain, "keys_read").startswith("-")


def test_dry_lengthens_and_loses_even_under_full_attention() -> None:
    assert "`dry` lengthens outputs and loses answers even under full attention" in TEXT
    mine = [
        row for row in FOUND["penalties"]["rows"]
        if (row["penalty"], row["detector"], row["backend"]) == ("dry", "none", "full")
    ]  # fmt: skip
    assert mine
    for row in mine:
        assert row["penalty_length_ratio_low"] > 1
        assert row["penalty_accuracy_change_p"] < 0.001
        assert row["penalty_solved_lost"] > 20 > 5 > row["penalty_solved_gained"]


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: scripts/pages/a.py -->\nold\n<!-- end of results -->\nafter\n")
    assert pages.put(page, "a.py", "new", check=True, name="table") == 1
    assert pages.put(page, "a.py", "new", check=False, name="table") == 0
    assert pages.put(page, "a.py", "new", check=True, name="table") == 0
    assert page.read_text().endswith("\n\nnew\n<!-- end of results -->\nafter\n")
    with pytest.raises(ValueError, match=r"no place for results of a\.py"):
        pages.put(page, "a.py", "new", check=False)


def test_its_tables_are_what_was_found() -> None:
    command = [sys.executable, "scripts/pages/actions_table.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_samples_at_a_low_temperature_are_the_same_text() -> None:
    """By `null_worlds.py`: pairs of full attention's samples."""
    (percent,) = re.findall(r"temperature 0.6 would add little: (\d+)% of full attention's", TEXT)
    worlds = json.loads((ROOT / "docs" / "null.json").read_text())["null"]
    (same,) = (row["same"] for row in worlds if row["pool"] == "reasoner-0.6")
    assert f"{100 * same:.0f}" == percent
