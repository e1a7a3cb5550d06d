"""A run says at its end which tests were skipped and why, so that no net falls away unseen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.skips import skips_by_reason

ROOT = Path(__file__).resolve().parents[1]
MODULE = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_on_a_gpu(n):
    pytest.skip("no GPU")

@pytest.mark.skipif(True, reason="needs\\n  Chromium")
def test_in_a_browser(): ...

def test_anywhere(): ...
"""


def test_one_line_of_counts_by_reason() -> None:
    assert skips_by_reason([]) == "0 skipped"
    reasons = ["Skipped: b", "no GPU", "Skipped: no GPU", "a"]
    assert skips_by_reason(reasons) == "4 skipped: 2 no GPU; 1 a; 1 b"


def test_a_run_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(MODULE)
    (tmp_path / "test_none.py").write_text("import pytest\npytest.importorskip('no_such')\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", "2", "-q", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    said = done.stdout.splitlines()
    line = next(line for line in said if " skipped: " in line)
    assert line.startswith("5 skipped: 3 no GPU; 1 could not import 'no_such'"), done.stdout
    assert line.endswith("; 1 needs Chromium")
