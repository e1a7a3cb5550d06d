"""The LZ penalty's kernel for GPUs has the bits of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_kernel_has_the_bits_of_torch():
    """In a process of its own: Triton reads its variable once."""
    rows = 2_000
    pytest.importorskip("triton")
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("lz_on_triton.py")), str(rows)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert int(result.stdout.split()[-1]) >= rows
