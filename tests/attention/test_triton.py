"""The engines for GPUs where none is: Triton in its interpreter, a stand-in of flash-attn."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import attention
from attention.core.step import Occupancy
from attention.engines import ENGINES, QKV, TorchEngine, flash, select, triton
from attention.errors import InvalidValue
from attention.testing.driving import tiny_model

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the extra triton"
)


def run(*command: str, **environment: str) -> str:
    """Another Python with these variables beside its own; what it printed."""
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As if both packages were installed, a good GPU were there and no interpreter wanted."""
    real = importlib.util.find_spec

    def found(name: str, *rest: object) -> object:
        if name in ("triton", "flash_attn"):
            return importlib.machinery.ModuleSpec(name, None)
        return real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))  # noqa: ARG005
    monkeypatch.setenv("CC", "cc")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return monkeypatch


def test_a_gpu_is_read_by_triton_and_nothing_else_is(there: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert select("auto", GPU, dtype).name == "triton"
    assert select("auto", GPU, torch.float64).name == "torch"
    assert select("auto", torch.device("meta"), torch.float32).name == "torch"
    assert select("flash", GPU, torch.float16).name == "flash"
    before = select("auto", CPU, torch.float32).name
    assert before in ("cpp", "torch")
    there.setenv("TRITON_INTERPRET", "1")
    assert select("auto", CPU, torch.float32).name == before
    assert select("triton", CPU, torch.float32).name == "triton"


def test_what_is_missing_is_said(there: pytest.MonkeyPatch) -> None:
    def refused(name: str, device: torch.device, dtype: torch.dtype) -> str:
        with pytest.raises(InvalidValue) as error:
            select(name, device, dtype)
        return str(error.value)

    assert "float16, bfloat16, float32, not float64" in refused("triton", GPU, torch.float64)
    assert "a model on a CUDA device, not on cpu" in refused("triton", CPU, torch.float32)
    assert "float16 or bfloat16, not float32" in refused("flash", GPU, torch.float32)
    assert "a model on a CUDA device, not on cpu" in refused("flash", CPU, torch.float16)
    with there.context() as now:
        now.delenv("CC")
        now.setenv("PATH", "")
        assert "a C compiler" in refused("triton", GPU, torch.float16)
        assert "the engine triton beside it, which expects a C" in refused(
            "flash", GPU, torch.float16
        )
        assert select("auto", GPU, torch.float16).name == "torch"
    with there.context() as now:
        now.setattr(sysconfig, "get_paths", lambda: {"include": "/nowhere"})
        assert "there is no /nowhere/Python.h" in refused("triton", GPU, torch.float16)
        assert select("auto", GPU, torch.float16).name == "torch"
    with there.context() as now:
        now.setitem(sys.modules, "flash_attn", None)  # as an import that fails
        assert "a package flash_attn that can be imported: " in refused("flash", GPU, torch.float16)
        assert select("triton", GPU, torch.float16).name == "triton"
    with there.context() as now:
        now.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))  # noqa: ARG005
        assert "capability 8.0 or higher, not 7.5" in refused("triton", GPU, torch.float16)
    with there.context() as now:
        now.setattr(importlib.util, "find_spec", lambda name: None)  # noqa: ARG005
        assert "no package triton" in refused("triton", GPU, torch.float16)
        assert "no package flash_attn" in refused("flash", GPU, torch.float16)
    there.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds none" in refused("triton", GPU, torch.float16)


def test_a_model_is_told_why_before_anything_is_computed() -> None:
    with pytest.raises(InvalidValue, match="engine = 'flash': expected a model"):
        attention.get("full").on(tiny_model(), engine="flash").__enter__()


def test_nothing_imports_triton_unasked() -> None:
    said = run("-c", "import sys, attention.engines; print(*sys.modules)").split()
    assert "attention.engines.triton" in said
    assert not {"triton", "flash_attn", "attention.engines.triton_kernels"} & set(said)


def test_every_slot_is_in_one_split() -> None:
    for sets in (1, 2, 8, 100, 10_000):
        for most in (1, 63, 64, 65, 1000, 131_072):
            for slots in (16, 64):
                splits, each = triton.division(sets, most, slots, 132)
                assert each % slots == 0
                assert (splits - 1) * each < most <= splits * each
                assert splits <= 64
                if sets >= 2 * 132:
                    assert splits == 1
    assert triton.division(8, 1024, 64, 132) == (16, 64)
    assert triton.division(128, 131_072, 64, 132)[0] == 3


def test_tiles_are_what_matrix_units_multiply() -> None:
    for dtype in (torch.float32, torch.float16):
        for M in (1, 7, 16, 17, 300):
            for D in (1, 7, 80, 256, 512):
                tile = triton.tiles(M, D, dtype)
                assert min(tile) >= 16
                assert all(n & (n - 1) == 0 for n in tile)
                assert tile.WIDTH >= D
                assert min(M, 64) <= tile.ROWS


# A stand-in: no flash-attn is here. It has the parameters of release 2.8 and computes by torch, so
# that what is checked is only what is handed over and what is made of the answer.
def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
    return_softmax_lse=False,
):  # fmt: skip
    unused = (k, v, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, block_table)
    assert all(x is None for x in (*unused, alibi_slopes))
    assert (causal, window_size, softcap, num_splits) == (False, (-1, -1), 0.0, 0)
    assert rotary_interleaved
    B, T, heads, D = q.shape
    assert k_cache.shape == v_cache.shape == (B, k_cache.shape[1], k_cache.shape[2], D)
    assert T == 1
    assert cache_seqlens.dtype == torch.int32
    assert cache_seqlens.shape == (B,)
    assert k_cache.stride(-1) == v_cache.stride(-1) == 1
    keys, values = (
        x.transpose(1, 2).repeat_interleave(heads // x.shape[2], 1) for x in (k_cache, v_cache)
    )
    scores = q.transpose(1, 2) @ keys.transpose(2, 3) * softmax_scale
    behind = torch.arange(keys.shape[2]) >= cache_seqlens[:, None, None, None]
    scores = scores.masked_fill(behind, float("-inf")).float()
    out = (scores.softmax(-1).to(values.dtype) @ values).transpose(1, 2)
    return (out, scores.logsumexp(-1)) if return_softmax_lse else out


def test_flash_attn_is_handed_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.SimpleNamespace(flash_attn_with_kvcache=flash_attn_with_kvcache)
    monkeypatch.setattr(flash, "_flash_attn", lambda: stand_in)
    random = torch.Generator().manual_seed(0)
    B, H, M, D = 3, 2, 4, 64
    q = torch.randn(B, H, M, D, generator=random) / 8
    k = torch.randn(B, H, 99, D, generator=random)[:, :, :90]
    v = torch.randn(B, 95, H, D, generator=random).transpose(1, 2)
    held = Occupancy(np.array([17, 1, 80]), CPU)
    want = TorchEngine().attend(QKV(q, k, v), held, lse=True)
    found = ENGINES["flash"].attend(QKV(q, k, v), held, lse=True)
    assert found.probs is None
    torch.testing.assert_close(found.out, want.out)
    torch.testing.assert_close(found.lse, want.lse)
    assert ENGINES["flash"].attend(QKV(q, k, v), held).lse is None


@pytest.mark.parametrize("asked", ["probs", "sinks", "head 20", "head 264", "pages"])
def test_what_flash_attn_has_not_is_done_by_triton(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    for name in ("attend", "attend_pages"):
        monkeypatch.setattr(triton.TritonEngine, name, lambda *_, **__: called.append("triton"))
    monkeypatch.setattr(flash, "_flash_attn", lambda: pytest.fail("flash-attn was called"))
    D = int(asked.split()[1]) if "head" in asked else 64
    q, k = torch.zeros(1, 1, 2, D), torch.zeros(1, 1, 8, D)
    engine, held = ENGINES["flash"], Occupancy(np.array([5]), CPU)
    if asked == "pages":
        table = torch.zeros(1, 1, 1, dtype=torch.int64)
        engine.attend_pages(QKV(q, k, k), table, table, 4)
    else:
        sinks = torch.zeros(2) if asked == "sinks" else None
        engine.attend(QKV(q, k, k, sinks), held, probs=asked == "probs")
    assert called == ["triton"]


@pytest.mark.slow
@needs_triton
def test_the_kernels_in_the_interpreter(record_property: pytest.RecordProperty) -> None:
    said = run("scripts/checks/check_triton.py")
    lines = re.findall(r"triton\s+(\w+)\s+(\w+)\s+(\w+)\s+([\d,]+)\s+(\S+)\s+\S+$", said, re.M)
    assert len(lines) == 15, said
    assert {line[2] for line in lines} == {"float32", "float16", "bfloat16"}
    for operation, what, dtype, cases, difference in lines:
        record_property(f"{operation} {what} {dtype}", difference)
        assert int(cases) >= 15
    number = re.search(r"^(\d+) cases, 0 of 15 lines wrong", said, re.M)
    assert number is not None
    assert int(number[1]) > 120


@pytest.mark.slow
@needs_triton
def test_the_kernels_compile_for_gpus(tmp_path: Path) -> None:
    said = run("scripts/checks/check_triton.py", "--compile", TRITON_CACHE_DIR=str(tmp_path))
    # Of each engine's kernel by dtype and size, and of blocks' worth by size and vectors.
    assert len(re.findall(r"^sm_(?:80|90) ", said, re.M)) == 2 * (3 * 3 * 4 + 3 * 2)
    assert said.splitlines()[-1].startswith("0 beyond")


@pytest.mark.slow
@needs_triton
def test_what_every_engine_passes_triton_passes_in_the_interpreter() -> None:
    # Without other dtypes, which the oracle's cases have, and without what takes longest.
    some = "triton and not (float64 or bfloat16 or rounding or 1024 or 1500 or 3000)"
    tests = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "slow or not slow", "-k", some]
    files = ("tests/attention/test_engines.py", "tests/attention/test_engine_state.py")
    said = run(*tests, *files, TRITON_INTERPRET="1")
    assert "skipped" not in said, said
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) == (1 + 2 * 6 + 3 * 3 + 4 * 5 + 1 + 1 + 11) + 57, said
