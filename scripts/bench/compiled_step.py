"""Time of a decode step compiled and as it is, in turns, and what compiling takes.

    python scripts/bench/compiled_step.py                    # the shipped reasoner
    python scripts/bench/compiled_step.py --model qwen2-0.5b --batches 1,16 --dtype bfloat16

eager, compiled: median milliseconds of a step in turns; ratio: the median of pairs; bytes: what the
weights and the keys and values read would take at the measured bandwidth, as a share of a compiled
step; same: steps in which every row chose the same token. Both start from one prompt and go on with
their own tokens. Models other than the shipped one have random weights in the shape of that name,
as Qwen2 models; what compiling takes of memory is the growth of the process at its largest.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from attention_speed import bandwidth
from programs import Column, conditions, counts, measuring, names, one_message, parser, printed
from programs import table as made_table
from random_model import SHAPES, random_model
from transformers import Qwen2Config

from attention.patching.cache import AttentionCache
from attention.patching.compiled import CompiledStep, compiled
from experiments import bench
from experiments.grid import models
from experiments.grid.models import use_threads

#: Scores (B, V) of a cache, tokens and positions, (B, 1) each.
Way = Callable[[AttentionCache, torch.Tensor, torch.Tensor], torch.Tensor]

COLUMNS = (
    Column("", "backend", words=True),
    Column("batch", "batch"),
    Column("eager ms", "eager_ms", ".2f"),
    Column("compiled ms", "compiled_ms", ".2f"),
    Column("ratio", "ratio", ".2f"),
    Column("bytes", "of_bytes", ".0%"),
    Column("same", "same", ".1%"),
)


def compiled_step(
    model: str = models.REASONER,
    backends: Sequence[str] = ("full", "sink", "h2o", "quest", "infllm"),
    budget: int = 128,
    batches: Sequence[int] = (1, 8, 32),
    context: int = 256,
    steps: int = 100,
    dtype: str = "float32",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Compile a model's step into an empty folder, then time it beside the model itself.

    Args:
        model: the shipped one, or a name of `random_model.SHAPES`.
        backends: names; those with a budget get `budget`.
        budget: tokens a decode query may read.
        batches: rows.
        context: random tokens of a prompt.
        steps: timed, of each.
        dtype: of the weights.
        progress: told what is measured next.

    Raises:
        NotCompiled: with the reason.
    """
    loaded = _model(model, dtype)
    speed = bandwidth("cpu")
    progress("compiling")
    before = _most_memory()
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, LIL_CACHE=folder):
        with bench.sparse("full", budget).on(loaded) as cache:
            step = compiled(loaded, cache)
            assert step is not None
            grown = _most_memory() - before
            again = bench.seconds(partial(compiled, loaded, cache), "cpu")
        rows = []
        for batch in batches:
            for name in backends:
                progress(f"{name}, batch {batch}")
                rows.append(_row(loaded, step, speed, name, budget, batch, context, steps))
    return {
        "rows": rows,
        "model": model,
        "dtype": dtype,
        "layers": loaded.config.num_hidden_layers,
        "budget": budget,
        "context": context,
        "steps": steps,
        "compile_s": step.seconds,
        "load_s": again,
        "compile_bytes": grown,
        "bandwidth_bytes_per_s": speed,
        **bench.conditions(),
        "device": bench.device_name("cpu"),
    }


def _most_memory() -> int:
    """The most bytes that this process and those it waited for have held at once, each."""
    unit = 1 if sys.platform == "darwin" else 1024
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return unit * sum(resource.getrusage(one).ru_maxrss for one in who)


def _model(name: str, dtype: str) -> Any:
    if name in SHAPES:
        return random_model(Qwen2Config(**SHAPES[name]), getattr(torch, dtype), "cpu")
    return models.load(models.find(name), dtype, "cpu").model


@torch.inference_mode()
def _row(
    model: Any,
    step: CompiledStep,
    speed: float,
    name: str,
    budget: int,
    batch: int,
    context: int,
    steps: int,
) -> dict[str, Any]:
    torch.manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (batch, context))
    with bench.sparse(name, budget).on(model) as cache:
        newest = model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1)
        ways: dict[str, Way] = {"eager": partial(eager, model), "compiled": step}
        caches = {way: cache.clone() for way in ways}
        tokens = dict.fromkeys(ways, newest)
        times: dict[str, list[float]] = {way: [] for way in ways}
        same = 0
        for turn in range(bench.UNTIMED + steps):
            for way, run in ways.items():
                taken = bench.seconds(partial(_step, run, caches[way], tokens, way), "cpu")
                if turn >= bench.UNTIMED:
                    times[way].append(1e3 * taken)
            same += turn >= bench.UNTIMED and torch.equal(tokens["eager"], tokens["compiled"])
        read = _weight_bytes(model) + _key_bytes(model, caches["compiled"])
    pairs = zip(times["eager"], times["compiled"], strict=True)
    return {
        "backend": name,
        "batch": batch,
        **{f"{way}_ms": statistics.median(of) for way, of in times.items()},
        "ratio": statistics.median(eager / other for eager, other in pairs),
        "of_bytes": read / speed / statistics.median(times["compiled"]) * 1e3,
        "same": same / steps,
    }


def _weight_bytes(model: Any) -> int:
    """Bytes of all weights that a step reads; of a table of tokens alone it reads a few rows."""
    size = sum(weights.nbytes for weights in model.parameters())
    table = model.get_input_embeddings().weight
    tied = table is model.get_output_embeddings().weight
    return int(size if tied else size - table.nbytes)


def _key_bytes(model: Any, cache: AttentionCache) -> int:
    """Bytes of the keys and values that the newest step read."""
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = int(cache.row_stats().keys_read.sum())
    return int(2 * keys * head * model.dtype.itemsize)


def _step(run: Way, cache: AttentionCache, tokens: dict[str, torch.Tensor], way: str) -> None:
    """One step of a way, which goes on from its own newest tokens."""
    tokens[way] = run(cache, tokens[way][:, None], cache.seen[:, None]).argmax(-1)


def eager(
    model: Any, cache: AttentionCache, ids: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Scores (B, V) of the model itself, of one token a row."""
    given = {"input_ids": ids, "position_ids": positions, "past_key_values": cache}
    scores: torch.Tensor = model(**given, use_cache=True, logits_to_keep=1).logits[:, -1]
    return scores


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    flags = parser(__doc__)
    flags.add_argument("--model", default=models.REASONER, choices=[models.REASONER, *SHAPES])
    flags.add_argument("--backends", type=names, default=["full", "sink", "h2o", "quest", "infllm"])
    flags.add_argument("--budget", type=int, default=128)
    flags.add_argument("--batches", type=counts, default=[1, 8, 32])
    flags.add_argument("--context", type=int, default=256)
    flags.add_argument("--steps", type=int, default=100)
    flags.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    flags.add_argument("--threads", type=int, default=1)
    args = flags.parse_args(argv)
    use_threads(args.threads)
    with measuring() as progress:
        found = compiled_step(
            args.model, args.backends, args.budget, args.batches, args.context, args.steps,
            args.dtype, progress,
        )  # fmt: skip
    title = f"a decode step, {found['compile_s']:.0f} s to compile, {found['load_s']:.2f} to load"
    return printed(found, args.json, made_table(title, COLUMNS, found["rows"]), conditions(found))


if __name__ == "__main__":
    sys.exit(main())
