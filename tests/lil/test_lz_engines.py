"""The LZ penalty in C++ and in Triton's interpreter has the bits of torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lz_engines import ENGINES, compared
from penalty_cases import computed_by

import lil
from lil.penalties import _lz_cpp, _lz_rows, lz, lz_engine
from lil.penalties._lz_rows import LZRows
from lil.penalties._lz_state import LZParameters

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(not _lz_cpp.built(), reason="needs a compiler at install")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the extra triton"
)


def run(engine: str, calls: int, rows: int) -> int:
    """Scored rows that were compared, in a Python of its own: Triton reads its variable once."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("lz_engines.py")), engine, str(calls),
         "--rows", str(rows)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout.split()[-1])


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1])
def test_the_pass_in_cpp_has_the_bits_of_torch(seed, monkeypatch):
    monkeypatch.setattr(lz, "engine_for", None)  # `compared` sets it; here it is put back
    assert compared(ENGINES["cpp"], 800, seed, rows=6) >= 800


@needs_triton
def test_the_kernel_has_the_bits_of_torch():
    assert run("triton", 300, rows=40) >= 300


@pytest.mark.slow
@needs_compiler
def test_the_pass_in_cpp_has_the_bits_of_torch_in_long():
    assert run("cpp", 70_000, rows=8) >= 70_000


@pytest.mark.slow
@needs_triton
def test_the_kernel_has_the_bits_of_torch_in_long():
    assert run("triton", 20_000, rows=64) >= 20_000


@needs_compiler
def test_a_wrong_table_is_noticed(monkeypatch):
    """What compares is able to find a difference of one bit."""
    right = _lz_rows._lz_state.tables

    def wrong(*args, **kwargs):
        made = right(*args, **kwargs)
        nudged = torch.nextafter(made.logarithms, made.logarithms + 1)
        return made._replace(logarithms=nudged)

    monkeypatch.setattr(_lz_rows._lz_state, "tables", wrong)
    monkeypatch.setattr(lz, "engine_for", None)
    with pytest.raises(AssertionError):
        compared(ENGINES["cpp"], 400, 0, rows=6)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_scores_are_those_of_torch(dtype):
    history = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2], [-1, -1, 5, 5, 5, 1, 5, 5]])
    scores, found = torch.randn(2, 9).to(dtype), {}
    for engine in ("torch", "cpp"):
        with computed_by(engine):
            penalty = lil.LZPenalty(alpha=0.4, window=5, buffer=2)
            found[engine] = penalty.apply(penalty.begin(history, 9), scores)
    assert torch.equal(found["cpp"], found["torch"])
    assert not torch.equal(found["cpp"], scores)


@needs_compiler
def test_scores_may_lie_anywhere():
    rows = [LZParameters(0.4, 7, 2, "derived", ())] * 2
    history, turned = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]] * 2), torch.randn(9, 2).t()
    memory = LZRows(rows, history, ENGINES["cpp"])
    expected = memory.lower(turned.clone(memory_format=torch.contiguous_format))
    assert not torch.equal(turned, expected)
    assert memory.lower(turned) is turned
    assert torch.equal(turned, expected)


def test_what_computes_is_said(monkeypatch):
    assert lz_engine(CPU) == ("cpp" if _lz_cpp.built() else "torch")
    with computed_by("torch"):
        assert lz_engine(CPU) == "torch"
    monkeypatch.setattr(_lz_rows, "refusal", lambda _: None)
    _lz_rows.engine_for.cache_clear()
    assert lz_engine(torch.device("cuda")) == "triton"
    _lz_rows.engine_for.cache_clear()


def test_an_install_without_a_compiler_computes_with_torch(monkeypatch):
    monkeypatch.setattr(_lz_rows, "built", lambda: False)
    _lz_rows.engine_for.cache_clear()
    try:
        memory = lil.LZPenalty().begin(torch.tensor([[1, 2, 1]]), 9)
        assert not isinstance(memory, LZRows)
        assert lz_engine(CPU) == "torch"
    finally:
        _lz_rows.engine_for.cache_clear()
