"""docs/actions.md: its example runs, and its tables are what was found."""

from __future__ import annotations

import re
import subprocess
import sys
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
    command = [sys.executable, "scripts/pages/actions_table.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
