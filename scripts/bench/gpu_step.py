"""Time of a captured decode step, and tokens a second where rows fill the memory.

    python scripts/bench/gpu_step.py --cells 1x8192,8x8192,32x8192,8x32768
    python scripts/bench/gpu_step.py --shape llama-8b --cells 8x8192,32x8192 --fill

A cell is rows x tokens before the step. ms: time of steps launched one behind the other, until the
device is done with all of them, by their number; / full: of full attention in the same cell; bytes:
share of the time that weights and keys would take at the rate at which it reads; gap: the largest
difference of a step's scores from the plain engine's, of the largest score. Steps are compiled
between attentions, but for those of rows that fill the memory. Prompts of a few rows are read once
and repeated. A failed row has its reason, and the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from programs import Column, conditions, measuring, names, one_message, parser, printed
from programs import table as made_table
from random_model import SHAPES, random_model
from transformers import Qwen2Config

from attention.patching.captured import CapturedStep, padded
from attention.patching.compiled import compiled
from experiments import bench
from experiments.grid.models import resolve_device
from experiments.store.manifest import device_name
from lil.decoding.filling import rows_together
from lil.decoding.options import DecodeOptions, Request

COLUMNS = (
    Column("rows", "rows"),
    Column("tokens", "tokens"),
    Column("", "backend", words=True),
    Column("ms", "ms", ".2f"),
    Column("/ full", "of_full", ".2f"),
    Column("bytes", "bytes_share", ".0%"),
    Column("gap", "gap", ".1e"),
    Column("rows in memory", "fill_rows"),
    Column("tokens/s there", "fill_tokens_per_s", ",.0f"),
    Column("failed", "failed", words=True),
)
BACKENDS = ("full", "sink", "h2o", "quest", "infllm")
_EMPTY = dict.fromkeys(column.field for column in COLUMNS)
# Different prompts of a cell; the most rows that may fill the memory.
_PROMPTS, _MOST = 4, 1 << 16


def cells(text: str) -> list[tuple[int, int]]:
    """Rows and tokens, as in `8x8192,32x8192`.

    Raises:
        ArgumentTypeError: other things.
    """
    parts = [part.split("x") for part in text.split(",")]
    if not all(len(p) == 2 and all(n.isdecimal() and int(n) for n in p) for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ROWSxTOKENS, separated by commas")
    return [(int(rows), int(tokens)) for rows, tokens in parts]


def bytes_per_second(device: torch.device) -> float:
    """How many a device reads, of memory larger than its caches."""
    x = torch.ones(1 << (28 if device.type == "cuda" else 20), device=device)
    rates = []
    for _ in range(5):
        taken = bench.seconds(x.sum, str(device))
        rates.append(x.nbytes / taken)
    return max(rates)


class Cell:
    """Rows of one method, and a captured step of the model."""

    def __init__(self, model: Any, step: CapturedStep, cache: Any, steps: int) -> None:
        self.model, self.step, self.cache, self.steps = model, step, cache, steps

    def timed(self, rows: int, tokens: int) -> tuple[float, float]:
        """Seconds of a step, and the bytes that it has to read."""
        cache, device = self.cache, self.model.device
        cache.session.room = (padded(rows), tokens + 4 * (bench.UNTIMED + self.steps) + 2)
        ids = torch.randint(self.model.config.vocab_size, (rows, 1), device=device)
        for _ in range(bench.UNTIMED):
            scores = self.step(cache, ids, ids)

        def run() -> None:
            for _ in range(self.steps):
                self.step(cache, ids, ids)

        taken = bench.seconds(run, str(device)) / self.steps
        if not bool(scores.isfinite().all()):
            raise FloatingPointError("scores that are not finite")
        seen, itemsize = cache.seen.cpu().numpy(), scores.new_empty(0, dtype=self.model.dtype)
        keys = sum(int(x.cost(seen).sum()) * x.geometry.D for x in cache.layers)
        weights = sum(p.numel() for p in self.model.parameters())
        return taken, (2 * keys + weights) * itemsize.itemsize


def filled(model: Any, cache: Any, ids: torch.Tensor) -> None:
    """Read prompts one by one, which takes less memory than together."""
    for begin in range(len(ids)):
        new = cache if not begin else cache.new()
        model(ids[begin : begin + 1], past_key_values=new, logits_to_keep=1)
        if begin:
            cache.append_rows(new)


@torch.inference_mode()
def measured(
    model: Any, step: CapturedStep, name: str, budget: int, rows: int, tokens: int, steps: int,
    rate: float, engine: str, fill: bool,
) -> dict[str, Any]:  # fmt: skip
    """A row of the table."""
    torch.manual_seed(0)
    vocabulary, device = model.config.vocab_size, model.device
    ids = torch.randint(vocabulary, (min(rows, _PROMPTS), tokens + 1), device=device)
    with bench.sparse(name, budget).on(model, "torch") as cache:
        filled(model, cache, ids[:1, :-1])
        inputs = {"position_ids": cache.seen[:, None], "past_key_values": cache}
        wanted = model(ids[:1, -1:], **inputs, logits_to_keep=1).logits[:, -1]
    with bench.sparse(name, budget).on(model, engine) as cache:
        if fill:  # before rows take their memory
            requests = [Request(range(tokens), 4 * (bench.UNTIMED + steps))] * _MOST
            most = rows_together(model, cache, DecodeOptions(batch_size="auto"), requests)
        filled(model, cache, ids[:, :-1])
        scores = step(cache.clone([0]), ids[:1, -1:], ids[:1, -1:])
        gap = float((scores - wanted).abs().max() / wanted.abs().max())
        cell = Cell(model, step, cache, steps)
        cache.select_rows([i % len(ids) for i in range(rows)])
        taken, size = cell.timed(rows, tokens)
        row = {"ms": 1e3 * taken, "bytes_share": size / rate / taken, "gap": gap}
        if fill:
            step.fuses = False
            cache.select_rows([i % len(ids) for i in range(most)])
            row |= {"fill_rows": most, "fill_tokens_per_s": most / cell.timed(most, tokens)[0]}
            step.fuses = True
    return row


def gpu_step(args: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Every method in every cell.

    Raises:
        InvalidValue: no such device.
    """
    device, config = resolve_device(args.device), Qwen2Config(**SHAPES[args.shape])
    model = random_model(config, getattr(torch, args.dtype), device)
    rate, rows = bytes_per_second(model.device), list[dict[str, Any]]()
    progress("capturing")
    with bench.sparse("full", args.budget).on(model, args.engine) as cache:
        step = compiled(model, cache)
    assert isinstance(step, CapturedStep)
    for batch, tokens in args.cells:
        full = None
        for name in args.backends:
            progress(f"{name}, {batch} x {tokens}")
            row = _EMPTY | {"rows": batch, "tokens": tokens, "backend": name}
            try:
                row |= measured(
                    model, step, name, args.budget, batch, tokens, args.steps, rate,
                    args.engine, args.fill,
                )  # fmt: skip
            except Exception as error:  # the other rows are measured
                first = (str(error).strip().splitlines() or [""])[0]
                rows.append(row | {"failed": f"{type(error).__name__}: {first[:300]}"})
                continue
            full = row["ms"] if name == "full" else full
            rows.append(row | {"of_full": None if full is None else row["ms"] / full})
    return {
        "rows": rows, "shape": args.shape, "dtype": args.dtype, "budget": args.budget,
        "steps": args.steps, "capture_s": round(step.seconds, 1), "gb_per_s": rate / 1e9,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0,
        **bench.conditions(), "device": device_name(device),
    }  # fmt: skip


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    flags = parser(__doc__)
    flags.add_argument("--shape", default="qwen2-1.5b", choices=list(SHAPES))
    flags.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    flags.add_argument("--backends", type=names, default=list(BACKENDS))
    flags.add_argument("--budget", type=int, default=1024)
    flags.add_argument("--cells", type=cells, default=[(1, 8192), (8, 8192), (32, 8192)])
    flags.add_argument("--steps", type=int, default=24)
    flags.add_argument("--fill", action="store_true", help="also at the rows that fill the memory")
    flags.add_argument("--engine", default="auto", help="triton or flash")
    flags.add_argument("--device", default="cuda")
    args = flags.parse_args(argv)
    with measuring() as progress:
        result = gpu_step(args, progress)
    title = f"a captured decode step of {result['shape']}"
    printed(result, args.json, made_table(title, COLUMNS, result["rows"]), conditions(result))
    for row in (row for row in result["rows"] if row["failed"]):
        print(f"WRONG: {row['backend']}, {row['rows']}: {row['failed']}", file=sys.stderr)
    return int(any(row["failed"] for row in result["rows"]))


if __name__ == "__main__":
    sys.exit(main())
