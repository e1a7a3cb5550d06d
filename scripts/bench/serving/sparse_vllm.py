"""Time of a decode step's attention inside vLLM, sparse beside its own, in turns in one run.

    PYTHONPATH=. .venv-vllm/bin/python scripts/bench/serving/sparse_vllm.py
    PYTHONPATH=. .venv-vllm/bin/python scripts/bench/serving/sparse_vllm.py --contexts 2048

A step is what the engine does for one new token of every row in all layers of a shape: the plan of
the step, keys and values written, what is remembered of blocks kept up to date, blocks chosen, and
the engine's kernel. The rest of a model is the same in all. Caches hold random numbers and rows own
random blocks. Printed: the median step, how many times shorter than the engine's own (the median of
the pairs' ratios), keys read, and blocks that a row holds. One JSON line last.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lil.serving.blocks import policy_of

BLOCK = 32
WORKER = "lil.serving.vllm.sparse.worker.CPUWorker"


@dataclass(frozen=True)
class Shape:
    """Layers, query heads, KV heads and head size."""

    layers: int
    Hq: int
    Hkv: int
    D: int


#: The reasoner that ships, and a layer of a large model.
SHAPES = {"reasoner": Shape(5, 4, 2, 64), "wide": Shape(1, 32, 8, 128)}


def policies(budget: int) -> dict[str, str | None]:
    """What is compared, by name; None is the engine's own."""
    return {
        "full": None,
        "sink": f'sink(budget={budget}, sinks={BLOCK}, positions="absolute")',
        "quest": f"quest(budget={budget}, dense_layers=0)",
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
        self.cache = torch.randn(blocks, shape.Hkv, BLOCK, 2 * shape.D)
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
        builder.rows, builder.reads = Decoding(), None
        layer.impl.summaries = None
        if policy.best:
            self.run(layer, builder)
            known = layer.impl.summaries.data
            known.copy_(torch.randn_like(known).abs_())

    def run(self, layer: Any, builder: Any) -> float:
        """Seconds of the step."""
        start = perf_counter()
        plan = builder.build(0, self.common)
        for _ in range(self.shape.layers):
            layer.impl.do_kv_cache_update(
                layer, self.k, self.v, self.cache, self.common.slot_mapping
            )
            layer.impl.forward(layer, self.q, self.k, self.v, self.cache, plan, self.out)
        return perf_counter() - start


class Decoding:
    """Rows whose prompt was one token: what they have now they generated."""

    def prompts(self, rows: int) -> NDArray[np.int64]:
        """Tokens of the prompts, (rows,)."""
        return np.ones(rows, dtype=np.int64)

    def whole(self, rows: int) -> NDArray[np.bool_]:
        """None is read in full, (rows,)."""
        return np.zeros(rows, dtype=bool)


def compared(layers: dict[str, Any], step: Step, seen: int, repeats: int) -> list[dict[str, Any]]:
    """The rows of one table: every policy by turns."""
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for layer, builder, _, _ in layers.values():
        step.prepare(layer, builder)
        step.run(layer, builder)
    for _ in range(repeats):
        for name, (layer, builder, _, _) in layers.items():
            seconds[name].append(step.run(layer, builder))
    found = []
    for name, (*_, policy) in layers.items():
        pairs = [one / two for one, two in zip(seconds["full"], seconds[name], strict=True)]
        at, begun = np.array([seen]), -(-seen // BLOCK)
        start, end = policy.gap(at) if policy is not None else (np.zeros(1), np.zeros(1))
        back = policy is not None and policy.gives_back
        found.append(
            {
                "policy": name,
                "rows": step.rows,
                "context": seen,
                "step_ms": 1000 * median(seconds[name]),
                "times_full": median(pairs),
                "keys_read": int(policy.tokens_read(at)[0]) if policy is not None else seen,
                "blocks_held": begun - (int(end[0] - start[0]) if back else 0),
            }
        )
    return found


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
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name in options.shapes:
            shape = SHAPES[name]
            layers = {
                kind: (*layer_of(model_of(shape, folder), text), text and policy_of(text, BLOCK))
                for kind, text in policies(options.budget).items()
            }
            print(f"{name}: {shape}, budget {options.budget}, block {BLOCK}, float32")
            print(
                f"{'rows':>5}{'context':>9}{'policy':>8}{'ms':>9}{'times':>7}{'keys':>8}{'blocks':>8}"
            )
            for rows in options.batches:
                for seen in options.contexts:
                    step = Step(shape, rows, seen)
                    for one in compared(layers, step, seen, options.repeats):
                        every.setdefault(name, []).append(one)
                        print(
                            f"{one['rows']:>5}{one['context']:>9}{one['policy']:>8}"
                            f"{one['step_ms']:>9.3f}{one['times_full']:>7.2f}"
                            f"{one['keys_read']:>8}{one['blocks_held']:>8}",
                            flush=True,
                        )
    threads = torch.get_num_threads()
    print(json.dumps({"threads": threads, "budget": options.budget, "shapes": every}))


if __name__ == "__main__":
    main(sys.argv[1:])
