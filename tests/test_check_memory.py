"""Long decodes: memory stays flat and positions exact, by the script that prints the figures."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "check_memory.py"
DROPPING = ["h2o", "raas", "random", "rkv", "sink", "snapkv", "tova", "window"]


def run(*args: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, SCRIPT, *args], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_method_that_keeps_everything_is_found_out() -> None:
    code, said = run("--method", "quest", "--steps", "400")
    assert code == 1, said


def test_every_method_that_drops_tokens_is_checked() -> None:
    assert runpy.run_path(str(SCRIPT))["dropping"]() == DROPPING


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPPING)
def test_twenty_thousand_steps(name: str) -> None:
    code, said = run("--method", name)
    print(said)
    assert code == 0, said
