"""docs/actions.md: its example runs, and its tables are what was found."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lil.detectors import ACTIONS, names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "actions.md"


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


def test_its_tables_are_what_was_found() -> None:
    command = [sys.executable, "scripts/actions_table.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_its_words_are_what_was_found() -> None:
    read = runpy.run_path(str(ROOT / "scripts" / "records.py"))["read"]
    rows = read(ROOT / "docs" / "actions.json")["actions"]["rows"]
    lost: Counter[tuple[str, str]] = Counter()
    gained: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["detector"] != "none" and row["backend"] != "full":
            lost[row["detector"], row["action"]] += row["detector_solved_lost"]
            gained[row["detector"], row["action"]] += row["detector_solved_gained"]
    text = " ".join(PAGE.read_text().split())
    assert "it wins two answers and six stay lost of 384" in text
    answer = ("guardian", "answer")
    assert (gained[answer], lost[answer]) == (2, 6)
    assert "one answer for 16% of the tokens; Guardian loses seven for 17%" in text
    assert (lost["cycle", "stop"], lost["guardian", "stop"]) == (1, 7)
    measured = {row["detector"] for row in rows} - {"none"}
    assert lost["cycle", "stop"] == min(lost[name, "stop"] for name in measured)
