"""Time of one decode step of a whole model, every backend next to transformers' own way.

    python scripts/bench/model_speed.py                   # 1.5B weights; 8k and 32k tokens
    python scripts/bench/model_speed.py --shape tiny --contexts 512

ms: median of a step, least: the fastest, which other work on the machine disturbs least. full,
sdpa: times faster than our full attention and than transformers' sdpa with DynamicCache. MB: keys,
values and method state.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from attention_speed import BASELINE
from programs import Column, counts, measuring, names, one_message, parser, printed, table
from programs import conditions as shown
from random_model import SHAPES, count_weights, random_model
from torch import Tensor
from transformers import DynamicCache, Qwen2Config

from attention.contract.backend import Backend
from attention.core import devices
from attention.core.kernels import prompt_attention_left_out
from attention.engines import select
from attention.errors import InvalidValue, check_choice, check_int
from attention.patching.cache import AttentionCache
from experiments.bench import UNTIMED, conditions, forward, seconds, sparse
from experiments.grid.config import DTYPES
from experiments.grid.models import resolve_device
from experiments.store.manifest import device_name

#: One decode step with these newest ids.
Stepping = Callable[[Tensor], object]


@dataclass(frozen=True)
class Point:
    """Rows of one length: B, and tokens seen before the first timed step."""

    batch: int
    context: int


@dataclass(frozen=True)
class Timing:
    """One measured point.

    Attributes:
        ms, least_ms: median and fastest step.
        held_bytes: keys, values and method state, without spare room.
    """

    backend: str
    budget: int | None
    batch: int
    context: int
    ms: float
    least_ms: float
    held_bytes: int


#: Of a `Timing` and its ratios.
COLUMNS = (
    Column("batch", "batch"),
    Column("context", "context", ","),
    Column("backend", "backend", words=True),
    Column("ms", "ms", ".1f"),
    Column("least", "least_ms", ".1f"),
    Column("full", "faster_than_full", ".1f"),
    Column("sdpa", "faster_than_transformers", ".1f"),
    Column("MB", "held_bytes", ",.0f", 1e-6),
)


def model(
    backends: Sequence[str] = ("full", "h2o", "sink", "quest", "infllm"),
    budget: int = 1024,
    points: Sequence[Point] = (Point(1, 8192), Point(1, 32_768), Point(8, 8192), Point(8, 32_768)),
    shape: str = "qwen2-1.5b",
    layers: int | None = None,
    dtype: str = "bfloat16",
    device: str = "cpu",
    engine: str = "auto",
    steps: int = 8,
    memory: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time decode steps of a model with random weights, from token ids to scores.

    Caches are filled layer by layer by the methods' own prefill, the attention of the prompt left
    out, with random keys and values that all layers share. The baseline is transformers'
    `DynamicCache`, filled alike, with its sdpa attention function.

    Args:
        backends: names; `full` needs no budget.
        budget: tokens a decode query may read; no layer is left dense.
        points: in this order.
        shape: a name of `SHAPES`.
        layers: of the model, those of the shape by default.
        dtype: of weights, keys and values.
        device: where they lie.
        engine: what decode queries read with.
        steps: timed steps a point.
        memory: bytes that may be used, larger points are listed as left out; None for what the
            device has free.
        progress: receives what is measured next.

    Raises:
        InvalidValue: a name or a number that cannot be, or a context that a method refuses.
    """
    check_int("steps", steps, 1)
    if not points:
        raise InvalidValue("points", points, "at least one")
    for point in points:
        check_int("batch", point.batch, 1)
        check_int("context", point.context, 1)
    check_choice("shape", shape, SHAPES)
    check_choice("dtype", dtype, DTYPES)
    device = resolve_device(device)
    engine_name = select(engine, torch.device(device), getattr(torch, dtype)).name
    built = {name: sparse(name, budget) for name in backends}
    config = _config(shape, layers, max(point.context for point in points))
    result: dict[str, Any] = {"rows": [], "left_out": []}
    about = {
        "model": f"{shape}, {config.num_hidden_layers} layers, {dtype}, random weights",
        "budget": budget,
        "steps": steps,
        "engine": engine_name,
        **conditions(),
        "device": device_name(device),
    }
    size = count_weights(config) * getattr(torch, dtype).itemsize
    if size > (devices.free_memory(device) if memory is None else memory):
        return {**result, "left_out": [f"all: no memory for {size:,} bytes of weights"], **about}
    progress("random weights")
    torch.manual_seed(0)
    measured = random_model(config, getattr(torch, dtype), device)
    rows: list[Timing] = []
    for point in points:
        for name, backend in ((BASELINE, None), *built.items()):
            where = f"context {point.context}, batch {point.batch}: {name}"
            needed = _needed(config, measured.dtype, point, backend)
            free = devices.free_memory(device) if memory is None else memory - size
            if needed > free:
                result["left_out"].append(
                    f"{where}: takes up to {needed / 1e9:.1f} GB, free are {max(free, 0) / 1e9:.1f}"
                )
                continue
            progress(where)
            rows.append(_timing(measured, point, name, backend, engine_name, steps))
    return {**result, "rows": _ratios(rows), **about}


def _config(shape: str, layers: int | None, context: int) -> Qwen2Config:
    sizes = dict(SHAPES[shape])
    if layers is not None:
        sizes["num_hidden_layers"] = check_int("layers", layers, 1)
    return Qwen2Config(**sizes, max_position_embeddings=2 * context + 4096)


def _layer_bytes(config: Qwen2Config, dtype: torch.dtype, point: Point) -> int:
    """Keys and values of one layer."""
    numbers = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    size: int = 2 * numbers * point.batch * point.context * dtype.itemsize
    return size


def _needed(config: Qwen2Config, dtype: torch.dtype, point: Point, backend: Backend | None) -> int:
    """The most bytes a point takes besides the weights."""
    layer = _layer_bytes(config, dtype, point)
    layers: int = config.num_hidden_layers
    if backend is None:
        return (layers + 3) * layer  # those drawn; a layer's own while they become longer
    if backend.keeps_all or backend.budget is None:
        # Stores double when they grow; what finds pages in them takes less than a quarter.
        return int((2.25 * layers + 4) * layer)
    # What is dropped lies there until its layer has chosen.
    share = min(1.0, 2 * backend.budget / point.context)
    return int((share * layers + 8) * layer)


def _timing(
    model: Any, point: Point, name: str, backend: Backend | None, engine: str, steps: int
) -> Timing:
    filled = _baseline(model, point) if backend is None else _filled(model, point, backend, engine)
    times = []
    with filled as (step, stored), torch.inference_mode():
        for _ in range(UNTIMED + steps):
            size = (point.batch, 1)
            newest = torch.randint(model.config.vocab_size, size, device=model.device)
            times.append(1e3 * seconds(lambda newest=newest: step(newest), str(model.device)))  # type: ignore[misc]
        held_bytes = stored()
    return Timing(
        backend=name,
        budget=None if backend is None else backend.budget,
        batch=point.batch,
        context=point.context,
        ms=statistics.median(times[UNTIMED:]),
        least_ms=min(times[UNTIMED:]),
        held_bytes=held_bytes,
    )


def _drawn(model: Any, point: Point, heads: int, tokens: int) -> Tensor:
    head = model.config.hidden_size // model.config.num_attention_heads
    size = (point.batch, heads, tokens, head)
    return torch.randn(size, dtype=model.dtype, device=model.device)


def _keys_and_values(model: Any, point: Point) -> tuple[Tensor, Tensor]:
    """Of one layer; time does not ask whether those of the others differ."""
    heads = model.config.num_key_value_heads
    return _drawn(model, point, heads, point.context), _drawn(model, point, heads, point.context)


@contextmanager
def _baseline(model: Any, point: Point) -> Iterator[tuple[Stepping, Callable[[], int]]]:
    k, v = _keys_and_values(model, point)
    cache = DynamicCache()
    for index in range(model.config.num_hidden_layers):
        cache.update(k, v, index)

    def step(newest: Tensor) -> None:
        with devices.flash_first(newest.device):
            model(newest, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def stored() -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    yield step, stored


@contextmanager
def _filled(
    model: Any, point: Point, backend: Backend, engine: str
) -> Iterator[tuple[Stepping, Callable[[], int]]]:
    with backend.on(model, engine) as cache:
        fill(cache, model, point)

        def step(newest: Tensor) -> None:
            positions = cache.seen[:, None]
            model(
                newest,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )

        yield step, lambda: int(cache.row_stats().bytes.sum())


def fill(cache: AttentionCache, model: Any, point: Point) -> None:
    """Let an empty cache of a patched model have seen the context, as after its prompt."""
    k, v = _keys_and_values(model, point)
    heads = model.config.num_attention_heads
    q = _drawn(model, point, heads, 1).expand(-1, -1, point.context, -1)
    with torch.no_grad(), prompt_attention_left_out():
        for index in range(model.config.num_hidden_layers):
            forward(cache, q, k.view(k.shape), v.view(v.shape), index)


def _ratios(rows: Sequence[Timing]) -> list[dict[str, Any]]:
    """Each point with how many times faster it is than full attention and than transformers."""
    at = {(row.backend, row.batch, row.context): row.ms for row in rows}

    def faster(row: Timing, than: str) -> float | None:
        other = at.get((than, row.batch, row.context))
        return None if other is None or row.backend == than else other / row.ms

    return [
        {
            **asdict(row),
            "faster_than_full": faster(row, "full"),
            "faster_than_transformers": faster(row, BASELINE),
        }
        for row in rows
    ]


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--backends", type=names, default=["full", "h2o", "sink", "quest", "infllm"])
    flags.add_argument("--budget", type=int, default=1024, help="tokens a query may read (1024)")
    flags.add_argument("--contexts", type=counts, default=[8192, 32_768], help="tokens before")
    flags.add_argument("--batches", type=counts, default=[1, 8], help="rows (1,8)")
    flags.add_argument("--shape", default="qwen2-1.5b", help="qwen2-1.5b, qwen2-0.5b or tiny")
    flags.add_argument("--layers", type=int, help="of the model; as many as its shape has")
    flags.add_argument("--dtype", default="bfloat16", help="float32, bfloat16 or float16")
    flags.add_argument("--device", default="cpu", help="cpu or cuda")
    flags.add_argument("--engine", default="auto", help="cpp, triton, flash, torch, or auto")
    flags.add_argument("--steps", type=int, default=8, help="a point; the median counts (8)")
    args = flags.parse_args(argv)
    points = [Point(batch, context) for batch in args.batches for context in args.contexts]
    options = ("shape", "layers", "dtype", "device", "engine", "steps")
    chosen_options = {name: getattr(args, name) for name in options}
    with measuring() as progress:
        result = model(args.backends, args.budget, points, **chosen_options, progress=progress)
    title = f"a decode step of {result['model']}, budget {args.budget}"
    left_out = [f"left out: {line}" for line in result["left_out"]]
    rows = table(title, COLUMNS, result["rows"])
    return printed(result, args.json, rows, *left_out, shown(result))


if __name__ == "__main__":
    sys.exit(main())
