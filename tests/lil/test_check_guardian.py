"""Guardian on loops and on fresh text, by the script that prints the figures."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "checks" / "check_guardian.py"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize("period", [1, 2, 7, 40, 249, 250, 251, 700])
@pytest.mark.parametrize("size", [1.0, 3.5])
def test_loops_of_short_tokens_are_stopped_in_time(script: dict, period: int, size: float) -> None:
    assert script["late"](period, size, period) is None


def test_a_loop_beyond_the_window_of_deflate_is_not_seen(script: dict) -> None:
    assert script["stopped_after"](10_000, 4.0, 0) is None
    assert script["stopped_after"](10_000, 4.0, 0, "zstd") is not None


def test_fresh_text_goes_on(script: dict) -> None:
    count, stopped = script["false_stops"]()
    assert count >= 100
    assert not stopped


@pytest.mark.slow
def test_the_whole_table() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lzss_bits" in done.stdout
