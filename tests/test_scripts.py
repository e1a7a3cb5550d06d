"""Every program in scripts starts from another folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
PROGRAMS = [
    str(file.relative_to(SCRIPTS))
    for file in sorted(SCRIPTS.rglob("*.py"))
    if 'if __name__ == "__main__":' in file.read_text() and "argparse" in file.read_text()
]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_starts(program: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / program), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
