"""Time of a decode step's attention inside vLLM, sparse beside its own, in turns in one run.

    PYTHONPATH=. .venv-vllm/bin/python scripts/bench/serving/sparse_vllm.py
    PYTHONPATH=. .venv-vllm/bin/python scripts/bench/serving/sparse_vllm.py --contexts 2048

A step is what the engine does for one new token of every row in all layers of a shape: the plan of
the step and the count of its reads, keys and values written, what is remembered of blocks kept up
to date, blocks chosen, and the engine's kernel. The rest of a model is the same in all. Caches hold
random numbers, each layer has its own, and rows own random blocks. Beside them the same step of
`attention`'s own caches ("lil"), filled with random keys. Before each step as much memory is
written as a processor's caches hold, as the rest of a model would; the order changes from turn to
turn.

Printed: the median step; how many times shorter than the engine's own full attention (the median of
the ratios within a turn); the share reached of what reading the bytes takes at the best bandwidth
measured in this run; keys read by a KV head of a row; blocks that the policy lets a row hold. One
JSON line last.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1]))
from attention_speed import BEYOND_CACHES, bandwidth

from experiments import bench
from lil.serving.blocks import BlockPolicy, ReadCounts, policy_of

BLOCK = 32
WORKER = "lil.serving.vllm.sparse.worker.CPUWorker"


@dataclass(frozen=True)
class Shape:
    """Layers, query heads, KV heads and head size."""

    layers: int
    Hq: int
    Hkv: int
    D: int


#: Turns before those that count.
WARMING = 3
#: The reasoner that ships, and a layer of a large model.
SHAPES = {"reasoner": Shape(5, 4, 2, 64), "wide": Shape(1, 32, 8, 128)}


def policies(budget: int) -> dict[str, str | None]:
    """What is compared, by name; None is the engine's own."""
    return {
        "full": None,
        "sink": f'sink(budget={budget}, sinks={BLOCK}, positions="absolute")',
        "quest": f"quest(budget={budget}, dense_layers=0)",
    }


#: The same by our own names, for a budget given apart.
OURS = {
    "full": "full",
    "sink": f'sink(sinks={BLOCK}, positions="absolute")',
    "quest": f"quest(page={BLOCK})",
}


def model_of(shape: Shape, folder: str) -> str:
    """A model of such layers, without weights."""
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64,
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": shape.D,
        "num_attention_heads": shape.Hq, "num_key_value_heads": shape.Hkv, "dtype": "float32",
        "max_position_embeddings": 1 << 17, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }  # fmt: skip
    path = Path(folder) / f"{shape.Hq}-{shape.Hkv}-{shape.D}"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def layer_of(model: str, attention: str | None) -> tuple[Any, Any, Any]:
    """A layer of an engine, its builder, and the engine, which has to live as long."""
    from vllm import LLM

    sparse: dict[str, Any] = {}
    if attention is not None:
        more = {"lil": {"attention": attention}}
        sparse = {"worker_cls": WORKER, "additional_config": more}
    llm = LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=4096,
        kv_cache_memory_bytes=2**28,
        gpu_memory_utilization=0.1,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        **sparse,
    )
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    ((group,),) = runner.attn_groups
    layer = runner.compilation_config.static_forward_context[group.layer_names[0]]
    return layer, group.get_metadata_builder(), llm


class Step:
    """One decode step of some rows.

    Args:
        shape: of the layers.
        rows, seen: how many, and the tokens that each sees.
    """

    def __init__(self, shape: Shape, rows: int, seen: int) -> None:
        from vllm.v1.attention.backend import CommonAttentionMetadata

        self.shape, self.rows = shape, rows
        begun = -(-seen // BLOCK)
        blocks = rows * begun + 1
        size = (shape.layers, blocks, shape.Hkv, BLOCK, 2 * shape.D)
        self.caches = torch.randn(size)
        table = (torch.randperm(blocks - 1) + 1).view(rows, begun).to(torch.int32)
        slots = table[:, -1].long() * BLOCK + (seen - 1) % BLOCK
        starts = torch.arange(rows + 1, dtype=torch.int32)
        self.common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.full((rows,), seen, dtype=torch.int32),
            num_reqs=rows,
            num_actual_tokens=rows,
            max_query_len=1,
            max_seq_len=seen,
            block_table_tensor=table,
            slot_mapping=slots,
            causal=True,
        )
        self.q = torch.randn(rows, shape.Hq, shape.D)
        self.k, self.v = (torch.randn(rows, shape.Hkv, shape.D) for _ in range(2))
        self.out = torch.empty_like(self.q)

    def prepare(self, layer: Any, builder: Any) -> None:
        """Let a sparse layer know its rows, and remember the blocks of this cache."""
        policy = getattr(layer.impl, "policy", None)
        if policy is None:
            return
        from lil.serving.vllm.sparse.rows import ReadLog

        builder.rows = Decoding()
        builder.reads = ReadLog(ReadCounts(policy, self.shape.layers, 0), None)
        if policy.best:
            # Each layer of a model remembers its own blocks.
            self.known = []
            for cache in self.caches:
                layer.impl.summaries = None
                known = layer.impl.remember(cache)
                known.data.copy_(torch.randn_like(known.data).abs_())
                self.known.append(known)

    def run(self, layer: Any, builder: Any) -> float:
        """Seconds of the step."""
        start = perf_counter()
        plan = builder.build(0, self.common)
        for index, cache in enumerate(self.caches):
            if getattr(layer.impl, "summaries", None) is not None:
                layer.impl.summaries = self.known[index]
            layer.impl.do_kv_cache_update(layer, self.k, self.v, cache, self.common.slot_mapping)
            layer.impl.forward(layer, self.q, self.k, self.v, cache, plan, self.out)
        return perf_counter() - start


class OwnStep:
    """The same step of `attention`'s own cache.

    Args:
        shape: of the layers.
        rows, seen: how many, and the tokens that each sees in the first step.
        policy: by the name of `OURS`.
        budget: tokens that a query may read.
    """

    def __init__(self, shape: Shape, rows: int, seen: int, policy: str, budget: int) -> None:
        self.shape = bench.Shape(
            heads=shape.Hq, kv_heads=shape.Hkv, head_size=shape.D, batch=rows, context=seen - 1
        )
        # Rows begin alike; a cache has its own copy of each.
        k, v = (
            torch.randn(1, shape.Hkv, seen - 1, shape.D).expand(rows, -1, -1, -1) for _ in range(2)
        )
        backend = bench.sparse(OURS[policy], budget)
        self.cache = bench.filled(backend, self.shape, k, v, shape.layers)
        self.layers = shape.layers

    def run(self) -> float:
        """Seconds of the step, by which each row has a token more."""
        q = self.shape.random(self.shape.heads, 1)
        k, v = (self.shape.random(self.shape.kv_heads, 1) for _ in range(2))
        start = perf_counter()
        for index in range(self.layers):
            bench.forward(self.cache, q, k, v, index)
        return perf_counter() - start


class Decoding:
    """Rows whose prompt was one token: what they have now they generated."""

    def names(self, rows: int) -> list[str]:
        """The requests."""
        return [f"row {row}" for row in range(rows)]

    def prompts(self, rows: int) -> NDArray[np.int64]:
        """Tokens of the prompts, (rows,)."""
        return np.ones(rows, dtype=np.int64)

    def whole(self, rows: int) -> NDArray[np.bool_]:
        """None is read in full, (rows,)."""
        return np.zeros(rows, dtype=bool)


Way = tuple[str, str]


def compared(
    layers: dict[str, Any], shape: Shape, rows: int, seen: int, budget: int, repeats: int
) -> list[dict[str, Any]]:
    """The rows of one table: every policy of the engine by turns, and ours with them, one by one.

    One by one, since not all caches at once have room.
    """
    step = Step(shape, rows, seen)
    for layer, builder, _, _ in layers.values():
        step.prepare(layer, builder)
    engine: dict[Way, Callable[[], float]] = {
        ("vllm", name): partial(step.run, layer, builder)
        for name, (layer, builder, _, _) in layers.items()
    }
    other = torch.zeros(BEYOND_CACHES // 4)
    seconds: dict[Way, list[float]] = {}
    ratios: dict[Way, list[float]] = {}
    for own in OURS:
        # Our cache grows in its first steps, which are not counted; the engine's is there.
        ways = [*engine.items(), (("lil", own), OwnStep(shape, rows, seen, own, budget).run)]
        for turn in range(-WARMING, repeats):
            taken: dict[Way, float] = {}
            first = turn % len(ways)
            for way, run in (*ways[first:], *ways[:first]):
                other.add_(1)
                taken[way] = run()
            if turn < 0:
                continue
            for way, one in taken.items():
                seconds.setdefault(way, []).append(one)
                ratios.setdefault(way, []).append(taken["vllm", "full"] / one)
        del ways
    return [
        {
            "runtime": way[0],
            "policy": way[1],
            "rows": rows,
            "context": seen,
            "step_ms": 1000 * median(times),
            "times_full": median(ratios[way]),
            "faster_in": sum(ratio > 1 for ratio in ratios[way]),
            "turns": len(times),
            **read(shape, rows, seen, layers[way[1]][3], paged=way[0] == "vllm"),
        }
        for way, times in sorted(seconds.items(), reverse=True)
    ]


def read(
    shape: Shape, rows: int, seen: int, policy: BlockPolicy | None, *, paged: bool
) -> dict[str, Any]:
    """What a step reads, and which blocks a row holds by its policy."""
    at, begun = np.array([seen]), -(-seen // BLOCK)
    keys, compared, held = seen, 0, begun
    if policy is not None:
        keys = int(policy.tokens_read(at)[0])
        compared = int(policy.blocks_compared(at)[0])
        if policy.gives_back:
            start, end = policy.gap(at)
            held -= int(end[0] - start[0])
    numbers = keys * 2 * shape.D
    if compared:
        assert policy is not None
        numbers += compared * policy.size(shape.D)
    needed = 4 * rows * shape.layers * shape.Hkv * numbers
    return {"bytes": needed, "keys_read": keys, "blocks_held": held if paged else None}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    given.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    given.add_argument("--contexts", nargs="+", type=int, default=[2048, 8192, 32768])
    given.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    given.add_argument("--budget", type=int, default=1024)
    given.add_argument("--repeats", type=int, default=7)
    options = given.parse_args(arguments)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    torch.manual_seed(0)
    every: dict[str, list[dict[str, Any]]] = {}
    speeds = [bandwidth("cpu")]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name in options.shapes:
            shape = SHAPES[name]
            layers = {
                kind: (*layer_of(model_of(shape, folder), text), text and policy_of(text, BLOCK))
                for kind, text in policies(options.budget).items()
            }
            for rows in options.batches:
                for seen in options.contexts:
                    print(f"{name}: {rows} rows of {seen} tokens", file=sys.stderr, flush=True)
                    every.setdefault(name, []).extend(
                        compared(layers, shape, rows, seen, options.budget, options.repeats)
                    )
                    speeds.append(bandwidth("cpu"))
    for name, found in every.items():
        for one in found:
            one["of_bound"] = one["bytes"] / max(speeds) / (one["step_ms"] / 1000)
        shown(name, found, options.budget)
    import vllm

    shapes = {name: asdict(SHAPES[name]) for name in options.shapes}
    told = {"budget": options.budget, "block": BLOCK, "bandwidth_bytes_per_s": max(speeds)}
    device = {"device": bench.device_name("cpu"), "vllm": vllm.__version__}
    print(json.dumps({**told, **bench.conditions(), **device, "shapes": shapes, "rows": every}))


def shown(name: str, found: list[dict[str, Any]], budget: int) -> None:
    """Print the table of a shape."""
    print(f"{name}: {SHAPES[name]}, budget {budget}, block {BLOCK}, float32")
    print(
        f"{'rows':>5}{'context':>9}{'runtime':>9}{'policy':>8}{'ms':>9}{'times':>7}"
        f"{'bound':>7}{'keys':>8}{'blocks':>8}"
    )
    for one in found:
        held = "-" if one["blocks_held"] is None else one["blocks_held"]
        print(
            f"{one['rows']:>5}{one['context']:>9}{one['runtime']:>9}{one['policy']:>8}"
            f"{one['step_ms']:>9.3f}{one['times_full']:>7.2f}{one['of_bound']:>7.0%}"
            f"{one['keys_read']:>8}{held:>8}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
