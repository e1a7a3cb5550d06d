"""How long a decode step of one attention layer takes, outside any model."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from attention.contract import Full
from attention.contract.backend import Backend
from attention.core.devices import free_memory
from attention.core.kernels import prompt_attention_left_out
from attention.engines import select
from attention.errors import InvalidValue, check_choice, check_int
from attention.methods import METHODS, find, get
from attention.patching.cache import ATTENTION, AttentionCache
from attention.patching.survey import Anatomy, Session
from experiments.grid.config import DTYPES
from experiments.grid.models import resolve_device

UNTIMED = 3  # steps before the first one that is timed


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A layer of the size of an 8B model's: Hq, Hkv, D, B, and the tokens before the first step.

    Raises:
        InvalidValue: a layer that cannot exist, or not on this machine.
    """

    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    batch: int = 1
    context: int = 32_768
    dtype: str = "float32"
    device: str = "cpu"
    engine: str = "auto"

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_size", "batch", "context"):
            check_int(name, getattr(self, name), 1)
        if self.heads % self.kv_heads:
            raise InvalidValue("heads", self.heads, f"a multiple of kv_heads = {self.kv_heads}")
        if self.head_size % 2:
            raise InvalidValue("head_size", self.head_size, "an even number, to be turned in pairs")
        if resolve_device(self.device) != self.device:
            raise InvalidValue("device", self.device, "cpu, or cuda and a number")
        check_choice("dtype", self.dtype, DTYPES)
        select(self.engine, torch.device(self.device), self.torch_dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def cache_bytes(self) -> int:
        """Bytes of all keys and values."""
        numbers = 2 * self.batch * self.kv_heads * self.context * self.head_size
        return numbers * self.torch_dtype.itemsize

    def random(self, heads: int, tokens: int) -> Tensor:
        """Random vectors (B, heads, tokens, D)."""
        size = (self.batch, heads, tokens, self.head_size)
        return torch.randn(size, dtype=self.torch_dtype, device=self.device)


@dataclass(frozen=True)
class Timing:
    """One method at one shape.

    Attributes:
        ms, least_ms: median and fastest step in milliseconds.
        times_full: how many times faster than full attention, the median over steps made directly
            after each other; None for full attention.
        held_bytes: keys, values and method state, without spare room.
    """

    method: str
    budget: int | None
    ms: float
    least_ms: float
    times_full: float | None
    held_bytes: int


def sparse(entry: str, budget: int) -> Backend:
    """A method by name or import path, with no dense layers, whose prompts may exceed its budget.

    Raises:
        InvalidValue: no such method, or a value it refuses.
    """
    spec = METHODS.spec(entry)
    declared = {f.name for f in dataclasses.fields(find(spec.name)) if f.init}
    params = {"budget": budget, "keep_prompt": False, "dense_layers": 0}
    params = {key: value for key, value in params.items() if key in declared}
    return get(spec.name, **(params | dict(spec.params)))


@torch.inference_mode()
def decode_steps(
    backends: Mapping[str, Backend], shape: Shape | None = None, repeats: int = 32
) -> list[Timing]:
    """Time decode steps of a layer: a row for full attention, then one for each method.

    The whole path of a patched model is timed, from `cache.update` on; what layers of a model
    share (lengths, masks) is charged to this layer. Keys, values and queries are random and roped.
    A method's own prefill fills its state, without attention over the prompt. All make a step each
    in turn, so that a machine whose speed changes disturbs all alike.

    Raises:
        InvalidValue: no steps, a context that a method refuses, or too little memory.
    """
    check_int("repeats", repeats, 1)
    shape = Shape() if shape is None else shape
    every = {"full": Full(), **{name: b for name, b in backends.items() if name != "full"}}
    # A prompt and its copies; a method that keeps all has room for as many again.
    needed = (1 + 2 * sum(b.keeps_all for b in every.values())) * shape.cache_bytes
    free = free_memory(shape.device)
    if needed > free:
        allowed = f"less: keys and values take {needed:.3g} bytes of {free:.3g} that are free"
        raise InvalidValue("context", shape.context, allowed)
    k, v = (shape.random(shape.kv_heads, shape.context) for _ in range(2))
    caches = {name: filled(backend, shape, k, v) for name, backend in every.items()}
    times: dict[str, list[float]] = {name: [] for name in every}
    for turn in range(UNTIMED + repeats):
        for name, cache in caches.items():
            q, k, v = (shape.random(n, 1) for n in (shape.heads, *[shape.kv_heads] * 2))
            taken = seconds(partial(forward, cache, q, k, v), shape.device)
            if turn >= UNTIMED:
                times[name].append(1e3 * taken)
    rows = []
    for name, backend in every.items():
        pairs = zip(times["full"], times[name], strict=True)
        times_full = (
            None if name == "full" else statistics.median(full / own for full, own in pairs)
        )
        state = int(caches[name].row_stats().bytes.sum())
        median, least = statistics.median(times[name]), min(times[name])
        rows.append(Timing(name, backend.budget, median, least, times_full, state))
    return rows


def forward(cache: AttentionCache, q: Tensor, k: Tensor, v: Tensor, index: int = 0) -> Tensor:
    """One forward of one layer, as a patched model makes it: (B, H, T, D) to (B, T, Hq, D)."""
    k, v = cache.update(k, v, index)
    cache.handed = False
    return cache.attend(index, q, k, v, None, q.shape[-1] ** -0.5, None)


class _Model(SimpleNamespace):
    """What a session asks a model for; a plain namespace cannot be referred to weakly."""


def filled(backend: Backend, shape: Shape, k: Tensor, v: Tensor, layers: int = 1) -> AttentionCache:
    """A cache outside any model whose layers have read a prompt's keys and values, (B, Hkv, n, D).

    The prompt is not attended to: its n squared would take minutes.
    """
    config = LlamaConfig(
        hidden_size=shape.heads * shape.head_size,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        num_hidden_layers=layers,
        attn_implementation=ATTENTION,
    )
    backend.check_heads([shape.kv_heads] * layers, [shape.heads // shape.kv_heads] * layers)
    rope = LlamaRotaryEmbedding(config).to(shape.device)
    model = _Model(config=config, base_model=SimpleNamespace(rotary_emb=rope))
    cache = AttentionCache(Session(backend, Full(), model, shape.engine, Anatomy.plain(layers)))
    q = shape.random(shape.heads, 1).expand(-1, -1, shape.context, -1)
    with torch.no_grad(), prompt_attention_left_out():
        for index in range(layers):
            forward(cache, q, k.view(k.shape), v.view(v.shape), index)
    return cache


def seconds(work: Callable[[], object], device: str) -> float:
    """Seconds until `work` is done, on the device too."""
    wait: Callable[[], object] = torch.cuda.synchronize if "cuda" in device else lambda: None
    wait()
    started = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - started


def conditions() -> dict[str, Any]:
    """What a time depends on besides the work."""
    return {
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
