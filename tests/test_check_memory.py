"""Long decodes: memory stays flat and positions exact, by the script that prints the figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "check_memory.py"


def run(*args: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, SCRIPT, *args], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_method_that_keeps_everything_is_found_out() -> None:
    code, said = run("--method", "quest", "--steps", "400")
    assert code == 1, said


@pytest.mark.slow
def test_twenty_thousand_steps() -> None:
    code, said = run()
    print(said)
    assert code == 0, said
    for name in ("h2o", "raas", "random", "rkv", "sink", "snapkv", "tova", "window"):
        assert f" {name} " in said
