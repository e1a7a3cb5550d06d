"""The engines for GPUs where none is: Triton in its interpreter, a stand-in of flash-attn."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import sysconfig
import types
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from attention.engines import ENGINES, select
from attention.engines.gpu import DeviceCounts, Store
from attention.errors import InvalidValue

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the extra triton"
)


def run(*command: str, **environment: str) -> None:
    """Another Python with these variables besides its own."""
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**variables, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As if both packages were installed, a good GPU were there and no interpreter wanted."""
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: object) -> object:
        if name in ("triton", "flash_attn"):
            return importlib.machinery.ModuleSpec(name, None)
        return real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
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


def test_what_is_missing_is_named(there: pytest.MonkeyPatch) -> None:
    def refused(name: str, device: torch.device, dtype: torch.dtype) -> str:
        with pytest.raises(InvalidValue) as error:
            select(name, device, dtype)
        return str(error.value)

    assert "float16, bfloat16, float32, not float64" in refused("triton", GPU, torch.float64)
    assert "a model on a CUDA device, not on cpu" in refused("triton", CPU, torch.float32)
    assert "float16 or bfloat16, not float32" in refused("flash", GPU, torch.float32)
    with there.context() as now:
        now.delenv("CC")
        now.setenv("PATH", "")
        assert "a C compiler" in refused("triton", GPU, torch.float16)
        assert "which expects a C" in refused("flash", GPU, torch.float16)
        assert select("auto", GPU, torch.float16).name == "torch"
    with there.context() as now:
        now.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))  # noqa: ARG005
        assert "capability 8.0 or higher, not 7.5" in refused("triton", GPU, torch.float16)
    there.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds none" in refused("triton", GPU, torch.float16)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("kernels", ["gpu", "gpu_choice"])
def test_steps_whose_lengths_are_on_the_device(kernels: str) -> None:
    run("-m", "pytest", f"tests/attention/test_{kernels}.py", TRITON_INTERPRET="1")


def test_flash_attn_reads_all_slots_and_prompts_without_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in does what its documentation says, in loops over rows."""
    package, draw = types.ModuleType("flash_attn"), torch.Generator().manual_seed(0)
    attend = torch.nn.functional.scaled_dot_product_attention

    def kvcache(q, keys, values, k, v, *, cache_seqlens, softmax_scale):
        for r, n in enumerate(cache_seqlens.tolist()):
            keys[r, n], values[r, n] = k[r, 0], v[r, 0]
        each = [
            attend(*(x[r, :n].transpose(0, 1) for x, n in ((q, 1), (keys, m), (values, m))),
                   scale=softmax_scale, enable_gqa=True)
            for r, m in enumerate((cache_seqlens + 1).tolist())
        ]  # fmt: skip
        return torch.stack(each).transpose(1, 2)

    def varlen(q, k, v, ends, key_ends, most, most_keys, *, softmax_scale, causal):
        assert (torch.equal(ends, key_ends), most == most_keys, causal) == (True, True, True)
        assert most == int(ends.diff().max())
        parts = [
            attend(*(x[a:b].transpose(0, 1) for x in (q, k, v)), scale=softmax_scale,
                   is_causal=True, enable_gqa=True).transpose(0, 1)
            for a, b in pairwise(ends.tolist())
        ]  # fmt: skip
        return torch.cat(parts)

    package.flash_attn_with_kvcache, package.flash_attn_varlen_func = kvcache, varlen
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    engine, seen = ENGINES["flash"], np.array([6, 0, 3])
    counts = DeviceCounts(4, 9, CPU)
    counts.write(seen, {})
    keys, values = (torch.full((4, 2, 9, 8), torch.nan) for _ in range(2))
    for r, n in enumerate(seen):
        for x in (keys, values):
            x[r, :, :n] = torch.randn(2, n, 8, generator=draw)
    q, k, v = (torch.randn(3, heads, 1, 8, generator=draw) for heads in (4, 2, 2))
    out = engine.step(counts, Store(0, keys, values, counts.seen, 9), q, k, v, 0.5)
    assert torch.equal(keys[0, :, 6], k[0, :, 0])
    for r, n in enumerate(seen + 1):
        slots = (x[r, :, :n] for x in (keys, values))
        wanted = attend(q[r], *slots, scale=0.5, enable_gqa=True)
        torch.testing.assert_close(out[r], wanted.transpose(0, 1))
    q, k, v = (torch.randn(3, heads, 6, 8, generator=draw) for heads in (4, 2, 2))
    out = engine.ragged_prompt(q, k, v, 0.5, np.array([6, 2, 3]))
    for r, n in enumerate((6, 2, 3)):
        own = (x[r, :, 6 - n :] for x in (q, k, v))
        wanted = attend(*own, scale=0.5, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(out[r, 6 - n :], wanted.transpose(0, 1))
        assert (out[r, : 6 - n] == 0).all()
