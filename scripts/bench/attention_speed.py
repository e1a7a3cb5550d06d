"""Time of one decode step of one attention layer, every backend next to transformers' own way.

    python scripts/bench/attention_speed.py                 # 1k to 128k tokens
    python scripts/bench/attention_speed.py --contexts 32768 --backends full,quest --budget 512

ms: median, the same layer over and over; cold: median with the caches overwritten before each
step, as the other layers of a large model do. full, cold, sdpa: times
faster than full attention and than transformers' sdpa with DynamicCache. floor: share reached of
the time that reading the bytes takes at the bandwidth measured in this run; beyond 100% they lay
in a cache. MB: keys, values and method state.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from programs import (
    Column,
    conditions,
    counts,
    measuring,
    names,
    one_message,
    parser,
    printed,
    table,
)
from torch import Tensor
from transformers import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from attention.contract.backend import Backend
from attention.core import devices
from attention.engines import select
from attention.errors import InvalidValue
from attention.patching.cache import AttentionCache
from experiments import bench
from experiments.bench import UNTIMED, Shape, filled, forward, seconds
from experiments.store.manifest import device_name

BASELINE = "transformers"  # its sdpa attention function with a DynamicCache
TURNS = 7  # in which all that is compared is timed one after the other
BEYOND_CACHES = 1 << 28  # bytes; more than any cache between memory and cores holds


@dataclass(frozen=True)
class Timing:
    """One measured point; medians are over turns, of the median within a turn.

    Attributes:
        ms: median milliseconds of one step when the same layer is stepped over and over.
        cold_ms: median when the caches between memory and cores are overwritten before each step,
            as the other layers of a large model do.
        read_bytes: bytes of keys, values and index structures a step must read.
        floor_ms: `read_bytes` at the bandwidth measured in this run.
        of_floor: share of the bandwidth floor reached; can pass 1 where the data fits a cache.
        held_bytes: keys, values and method state, without spare room.
    """

    backend: str
    budget: int | None
    batch: int
    context: int
    ms: float
    cold_ms: float
    read_bytes: int
    floor_ms: float
    of_floor: float
    held_bytes: int


#: Of a `Timing` and its ratios.
COLUMNS = (
    Column("batch", "batch"),
    Column("context", "context", ","),
    Column("backend", "backend", words=True),
    Column("ms", "ms", ".2f"),
    Column("cold", "cold_ms", ".2f"),
    Column("full", "faster_than_full", ".1f"),
    Column("cold", "faster_than_full_cold", ".1f"),
    Column("sdpa", "faster_than_transformers", ".1f"),
    Column("floor", "of_floor", ".0%"),
    Column("MB", "held_bytes", ".1f", 1e-6),
)


def bandwidth(device: str, size: int = BEYOND_CACHES, repeats: int = 7) -> float:
    """Bytes a second at which a tensor of `size` bytes is read, the best of some sums."""
    x = torch.ones(size // 4, device=device)
    best = float("inf")
    for _ in range(repeats):
        best = min(best, seconds(lambda: x.sum(), device))
    return size / best


def attention(
    backends: Sequence[str] = ("full", "sink", "h2o", "quest", "infllm"),
    budget: int = 1024,
    shapes: Sequence[Shape] = (Shape(),),
    steps: int = 64,
    memory: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time decode steps of a layer, keys already roped: state update, choice, attention, counting.

    All backends of a point take turns, `TURNS` of them; a ratio is the median of the turns' ratios,
    so that a machine whose speed changes disturbs all alike.

    The whole path a patched model takes is timed, from `cache.update` on; what a model of many
    layers shares between them (lengths, masks) is charged to this one layer. Keys, values and
    queries are random. The state is filled by the methods' own prefill with the attention of the
    prompt left out, since its result is not used. The baseline is transformers' `DynamicCache` with
    its sdpa attention function.

    Args:
        backends: names; `full` needs no budget.
        budget: tokens a decode query may read.
        shapes: one point each, in this order.
        steps: timed steps a point, as many again with cold caches.
        memory: bytes that may be used, larger points are listed as left out; None for what the
            device has free.
        progress: receives what is measured next.

    Raises:
        InvalidValue: a backend, a budget, a dtype, a device, an engine or a number of steps that
            cannot be, or a context that a method refuses.
    """
    if steps < 1:
        raise InvalidValue("steps", steps, "at least 1")
    if not shapes:
        raise InvalidValue("shapes", shapes, "at least one")
    built = {name: bench.sparse(name, budget) for name in backends}
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    speed = {device: bandwidth(device) for device in {shape.device for shape in shapes}}
    for shape in shapes:
        free = devices.free_memory(shape.device) if memory is None else memory
        if _memory(shape, built.values()) > free:
            left_out.append(f"context {shape.context}, batch {shape.batch}: not enough memory")
        else:
            rows += _in_turns(shape, built, steps, speed[shape.device], progress)
    return {
        "rows": rows,
        "left_out": left_out,
        "bandwidth_bytes_per_s": speed,
        "shape": {k: getattr(shapes[0], k) for k in ("heads", "kv_heads", "head_size", "dtype")},
        "engines": {
            d: select(shapes[0].engine, torch.device(d), shapes[0].torch_dtype).name for d in speed
        },
        "steps": steps,
        "turns": min(TURNS, steps),
        **bench.conditions(),
        "devices": {d: device_name(d) for d in speed},
    }


def _memory(shape: Shape, backends: Iterable[Backend]) -> int:
    """Bytes of all that takes turns at one point: what keeps all tokens has room for as many."""
    keeping = sum(backend.keeps_all for backend in backends)
    # The prompt, the baseline's tokens and a copy of them in each of its steps.
    return (3 + 2 * keeping) * shape.cache_bytes


Step = Callable[[Tensor, Tensor, Tensor], object]


@torch.inference_mode()
def _in_turns(
    shape: Shape,
    built: dict[str, Backend],
    steps: int,
    speed: float,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The rows of one point; every backend is timed once in each turn."""
    progress(f"context {shape.context}, batch {shape.batch}: filling")
    torch.manual_seed(0)
    k, v = (shape.random(shape.kv_heads, shape.context) for _ in range(2))
    caches = {name: filled(backend, shape, k, v) for name, backend in built.items()}
    ways: dict[str, Step] = {BASELINE: _baseline(shape, k, v)}
    ways |= {name: partial(forward, cache) for name, cache in caches.items()}
    turns = min(TURNS, steps)
    times: dict[str, list[Times]] = {name: [] for name in ways}
    for turn in range(turns):
        for name, step in ways.items():
            progress(f"turn {turn + 1}: context {shape.context}, batch {shape.batch}, {name}")
            times[name].append(_steps(shape, step, -(-steps // turns)))
    rows = []
    for name, taken in times.items():
        read, stored, budget = shape.cache_bytes, shape.cache_bytes, None
        if name != BASELINE:
            budget = built[name].budget
            read = _read_bytes(caches[name], shape)
            stored = int(caches[name].row_stats().bytes.sum())
        ms, cold = (statistics.median(getattr(t, x) for t in taken) for x in ("warm", "cold"))
        floor = 1e3 * read / speed
        timing = Timing(
            name, budget, shape.batch, shape.context, ms, cold, read, floor, floor / ms, stored
        )
        rows.append(
            {
                **asdict(timing),
                "faster_than_full": _ratio(times, "full", name, "warm"),
                "faster_than_full_cold": _ratio(times, "full", name, "cold"),
                "faster_than_transformers": _ratio(times, BASELINE, name, "warm"),
            }
        )
    return rows


def _ratio(times: dict[str, list[Times]], over: str, under: str, measure: str) -> float | None:
    """The median over turns of one time by another; None without the other, or of the same."""
    if over not in times or over == under:
        return None
    pairs = zip(times[over], times[under], strict=True)
    ratio: float = statistics.median(getattr(a, measure) / getattr(b, measure) for a, b in pairs)
    return ratio


class Times(NamedTuple):
    """Median milliseconds of a turn's steps, and with cold caches."""

    warm: float
    cold: float


def _steps(shape: Shape, step: Step, count: int) -> Times:
    """Times of `count` steps, each with new tensors."""
    other = torch.zeros(BEYOND_CACHES // 4, device=shape.device)

    def timed(cold: bool) -> float:
        q = shape.random(shape.heads, 1)
        k, v = (shape.random(shape.kv_heads, 1) for _ in range(2))
        if cold:
            other.add_(1)
        return 1e3 * seconds(partial(step, q, k, v), shape.device)

    for _ in range(UNTIMED):
        timed(False)
    warm, cold = ([timed(c) for _ in range(count)] for c in (False, True))
    return Times(statistics.median(warm), statistics.median(cold))


def _baseline(shape: Shape, k: Tensor, v: Tensor) -> Step:
    cache = DynamicCache()
    cache.update(k, v, 0)
    module = SimpleNamespace(
        num_key_value_groups=shape.heads // shape.kv_heads, is_causal=True, training=False
    )

    def step(q: Tensor, k: Tensor, v: Tensor) -> None:
        keys, values = cache.update(k, v, 0)
        with devices.flash_first(q.device):
            sdpa_attention_forward(module, q, keys, values, None, scaling=shape.head_size**-0.5)

    return step


def _read_bytes(cache: AttentionCache, shape: Shape) -> int:
    """Bytes one step reads: a key and a value for each token, one vector for an index entry."""
    layer = cache.layers[0]
    seen = cache.seen.cpu().numpy()
    tokens = int(layer.reads(seen).sum()) * shape.kv_heads
    entries = int(layer.cost(seen).sum()) - tokens
    return int(2 * tokens + entries) * shape.head_size * shape.torch_dtype.itemsize


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--backends", type=names, default=["full", "sink", "h2o", "quest", "infllm"])
    flags.add_argument("--budget", type=int, default=1024, help="tokens a query may read (1024)")
    contexts = [1024, 4096, 16_384, 32_768, 131_072]
    flags.add_argument("--contexts", type=counts, default=contexts, help="tokens before")
    flags.add_argument("--batches", type=counts, default=[1, 16], help="rows (1,16)")
    flags.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    flags.add_argument("--device", default="cpu", help="cpu or cuda")
    flags.add_argument("--engine", default="auto", help="cpp, triton, flash, torch, or auto")
    flags.add_argument("--steps", type=int, default=64, help="a point; the median counts (64)")
    args = flags.parse_args(argv)
    common = {"dtype": args.dtype, "device": args.device, "engine": args.engine}
    shapes = [Shape(batch=b, context=n, **common) for b in args.batches for n in args.contexts]
    with measuring() as progress:
        result = attention(args.backends, args.budget, shapes, args.steps, progress=progress)
    title = f"milliseconds of a decode step of one layer at budget {args.budget}"
    left_out = [f"left out: {line}" for line in result["left_out"]]
    rows = table(title, COLUMNS, result["rows"])
    return printed(result, args.json, rows, *left_out, conditions(result))


if __name__ == "__main__":
    sys.exit(main())
