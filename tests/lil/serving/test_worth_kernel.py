"""Blocks compared by the Triton kernel, in the interpreter: what they are worth, what is chosen."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lil.serving.blocks import policy_of
from lil.serving.blocks.summaries import Summaries

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the extra triton"),
]


def run(*arguments: str) -> str:
    """What a Python of its own prints: Triton reads its variable once."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_what_blocks_are_worth() -> None:
    largest, count = run(str(Path(__file__).with_name("worth_compared.py"))).split()
    assert int(count) > 4000
    assert float(largest) < 2e-6


def test_a_layer_chooses_by_it_what_it_should() -> None:
    script = str(ROOT / "scripts" / "checks" / "check_paged_flash.py")
    *cases, last = map(
        json.loads, run(script, "--device", "cpu", "--stand-in", "--quick").splitlines()
    )
    assert (last["cases"], last["failed"]) == (6, 0)
    by = {one["policy"]: one["compared_by"] for one in cases}
    assert {by[name] for name in by if name[0] in "iq"} == {"triton"}
    assert by["sink"] is by["window"] is None


def test_processors_compare_without_it() -> None:
    """Outside the interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        pytest.skip("in the interpreter")
    known = Summaries(policy_of("quest(budget=64)", 16), 3, 2, 8, None)
    assert known.data.device == torch.device("cpu")
    assert not known.fused
