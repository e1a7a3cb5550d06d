"""Time of a decode step replayed as CUDA graphs and as the model itself is, in turns.

    python scripts/bench/graphed_step.py                      # 1.5B random weights on a GPU
    python scripts/bench/graphed_step.py --shape tiny --context 64 --steps 8

eager, graphs: median milliseconds of a step, until the device is done; ratio: the median of
pairs; same: share of rows in which both chose the same token, each step after the same tokens; gap:
the largest difference of scores, relative to the largest score. A failed row is printed with its
reason, the others are measured, and the exit code is 1.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from programs import Column, conditions, counts, measuring, names, one_message, parser, printed
from programs import table as made_table
from random_model import SHAPES, random_model
from torch import Tensor
from transformers import Qwen2Config

from attention.errors import check_choice
from attention.patching.cache import AttentionCache
from attention.patching.compiled import compiled
from attention.patching.decode_step import DecodeStep
from experiments import bench
from experiments.grid.models import resolve_device
from experiments.store.manifest import device_name

COLUMNS = (
    Column("dtype", "dtype", words=True),
    Column("", "backend", words=True),
    Column("batch", "batch"),
    Column("eager ms", "eager_ms", ".2f"),
    Column("graphs ms", "graphs_ms", ".2f"),
    Column("ratio", "ratio", ".2f"),
    Column("same", "same", ".2%"),
    Column("gap", "gap", ".1e"),
    Column("failed", "failed", words=True),
)
DTYPES = ("float32", "bfloat16")
_EMPTY = dict.fromkeys(column.field for column in COLUMNS)


def graphed_step(
    shape: str = "qwen2-1.5b",
    backends: Sequence[str] = ("full", "sink", "h2o", "quest", "infllm"),
    budget: int = 1024,
    batches: Sequence[int] = (1, 8, 32),
    context: int = 2048,
    steps: int = 64,
    dtypes: Sequence[str] = DTYPES,
    device: str = "cuda",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Capture a model's step in each dtype, then time it and the model itself.

    Args:
        shape: a name of `random_model.SHAPES`.
        backends: names; those with a budget get `budget`.
        budget: tokens a decode query may read.
        batches: rows.
        context: random tokens of a prompt.
        steps: timed, of each.
        dtypes: of the weights.
        device: where.
        progress: receives what is measured next.

    Raises:
        InvalidValue: no such shape, dtype or device.
    """
    check_choice("shape", shape, tuple(SHAPES))
    for dtype in dtypes:
        check_choice("dtype", dtype, DTYPES)
    device = resolve_device(device)
    config, rows, captured = Qwen2Config(**SHAPES[shape]), list[dict[str, Any]](), {}
    for dtype in dtypes:
        progress(f"capturing in {dtype}")
        model = random_model(config, getattr(torch, dtype), device)
        try:
            with bench.sparse("full", budget).on(model) as cache:
                step = compiled(model, cache)
        except Exception as error:  # the other dtypes are measured
            rows.append(_EMPTY | {"dtype": dtype, "failed": _first_line(error)})
            continue
        assert step is not None
        captured[dtype] = round(step.seconds, 1)
        for batch in batches:
            for name in backends:
                progress(f"{dtype}, {name}, batch {batch}")
                row = _EMPTY | {"dtype": dtype, "backend": name, "batch": batch}
                try:
                    rows.append(row | _row(model, step, name, budget, batch, context, steps))
                except Exception as error:  # the other rows are measured
                    rows.append(row | {"failed": _first_line(error)})
        del model, step
    return {
        "rows": rows,
        "shape": shape,
        "layers": config.num_hidden_layers,
        "budget": budget,
        "context": context,
        "steps": steps,
        "capture_s": captured,
        **bench.conditions(),
        "device": device_name(device),
    }


def eager(model: Any, cache: AttentionCache, ids: Tensor, positions: Tensor) -> Tensor:
    """Scores (B, V) of the model itself, of one token a row."""
    inputs = {"input_ids": ids, "position_ids": positions, "past_key_values": cache}
    scores: Tensor = model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1]
    return scores


@torch.inference_mode()
def _row(
    model: Any, step: DecodeStep, name: str, budget: int, batch: int, context: int, steps: int
) -> dict[str, Any]:
    torch.manual_seed(0)
    place = str(model.device)
    ids = torch.randint(model.config.vocab_size, (batch, context), device=place)
    with bench.sparse(name, budget).on(model) as cache:
        newest = model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1)
        ways = {"eager": partial(eager, model), "graphs": step}
        caches = {way: cache.clone() for way in ways}
        times: dict[str, list[float]] = {way: [] for way in ways}
        same, gap = 0, 0.0
        for turn in range(bench.UNTIMED + steps):
            scores: dict[str, Tensor] = {}
            for way, run in ways.items():
                at, token = caches[way].seen[:, None], newest[:, None]

                def step_once(run=run, way=way, at=at, token=token, scores=scores) -> None:
                    scores[way] = run(caches[way], token, at)

                taken = bench.seconds(step_once, place)
                if turn >= bench.UNTIMED:
                    times[way].append(1e3 * taken)
            newest, other = (scores[way].argmax(-1) for way in ways)
            expected, graphed = (scores[way].double() for way in ways)
            if not bool(graphed.isfinite().all()):
                raise FloatingPointError("scores of graphs that are not finite")
            if turn >= bench.UNTIMED:
                same += int((newest == other).sum())
                gap = max(gap, float((graphed - expected).abs().max() / expected.abs().max()))
    pairs = zip(times["eager"], times["graphs"], strict=True)
    return {
        **{f"{way}_ms": statistics.median(of) for way, of in times.items()},
        "ratio": statistics.median(eager_ms / graphs_ms for eager_ms, graphs_ms in pairs),
        "same": same / (steps * batch),
        "gap": gap,
    }


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    flags = parser(__doc__)
    flags.add_argument("--shape", default="qwen2-1.5b", choices=list(SHAPES))
    flags.add_argument("--backends", type=names, default=["full", "sink", "h2o", "quest", "infllm"])
    flags.add_argument("--budget", type=int, default=1024)
    flags.add_argument("--batches", type=counts, default=[1, 8, 32])
    flags.add_argument("--context", type=int, default=2048)
    flags.add_argument("--steps", type=int, default=64)
    flags.add_argument("--dtypes", type=names, default=list(DTYPES))
    flags.add_argument("--device", default="cuda")
    args = flags.parse_args(argv)
    with measuring() as progress:
        result = graphed_step(
            args.shape, args.backends, args.budget, args.batches, args.context, args.steps,
            args.dtypes, args.device, progress,
        )  # fmt: skip
    title = f"a decode step of {result['shape']}, as graphs and as it is"
    printed(result, args.json, made_table(title, COLUMNS, result["rows"]), conditions(result))
    failed = [row for row in result["rows"] if row["failed"]]
    for row in failed:
        named = ", ".join(str(row[of]) for of in ("dtype", "backend", "batch") if row[of])
        print(f"WRONG: {named}: {row['failed']}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
