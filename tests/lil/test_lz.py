"""The LZ penalty has the paper's numbers, and the kernel for GPUs has the bits of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from penalty_cases import V

import lil
from tests.lil.oracles import lz_golden

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("golden", lz_golden.CODES, ids=[row[0] for row in lz_golden.CODES])
@pytest.mark.parametrize("formula", ["derived", "printed"])
def test_codes_are_those_of_the_table(golden, formula):
    history, buffer, window, derived, printed = golden
    bits = derived | (printed if formula == "printed" else {})
    expected = torch.tensor(lz_golden.all_tokens(bits, 4.0)) - 4
    options = {"buffer": buffer, "window": window, "formula": formula, "include_prompt": True}
    penalty = lil.LZPenalty(alpha=1.0, **options)
    scores = penalty(torch.tensor([lz_golden.tokens(history)]), torch.zeros(1, V))
    torch.testing.assert_close(scores[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("golden", lz_golden.RATES, ids=[row[0] for row in lz_golden.RATES])
def test_rates_are_those_of_the_table(golden):
    history, buffer, window, lowered = golden
    options = {"buffer": buffer, "window": window, "formula": "rate", "include_prompt": True}
    penalty = lil.LZPenalty(alpha=1.0, **options)
    scores = penalty(torch.tensor([lz_golden.tokens(history)]), torch.zeros(1, V))
    expected = -torch.tensor(lz_golden.all_tokens(lowered, 0.0))
    torch.testing.assert_close(scores[0], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rows", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_kernel_has_the_bits_of_torch(rows):
    """In a process of its own: Triton reads its variable once."""
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
