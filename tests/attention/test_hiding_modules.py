"""A file of the user's that hides a package of this project is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_module_that_hides_attention_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "attention.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "import lil"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: lil needs its own package `attention`, which ")
    assert str(tmp_path / "attention.py") in last
