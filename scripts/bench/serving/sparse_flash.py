"""Time of a decode step of one layer over FlashAttention's paged kernel on a GPU, sparse and full.

    python scripts/bench/serving/sparse_flash.py
    python scripts/bench/serving/sparse_flash.py --shapes wide --contexts 32768 --rows 1 16

A sparse step is `FlashLayer.forward` for one new token of every row: summaries of blocks kept up to
date, blocks chosen, and the kernel over them; a full one is the kernel over all blocks of the same
cache. Caches hold random numbers in bfloat16, and rows own random blocks. Times are medians of
`triton.testing.do_bench`, by events, with the L2 cache cleared before each step. The plan of a step
serves all layers and is not in them: `plan_ms` is the host's time for it.

Prints one JSON object: for each shape, context and number of rows the times, how many times shorter
than the full step, and the keys that a KV head of a row reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lil" / "serving")]

from paged_flash import Metadata, kernel_of, layer_of  # noqa: E402

from lil.serving.blocks.plans import StepReads, queries  # noqa: E402
from lil.serving.blocks.policies import policy_of  # noqa: E402
from lil.serving.blocks.ropes import RopeTable  # noqa: E402

BLOCK = 16
#: KV heads, query heads of each, and numbers of a head.
SHAPES = {"wide": (8, 4, 128), "reasoner": (2, 2, 64)}


def policies(budget: int) -> dict[str, str | None]:
    """What is compared, by name; None reads everything."""
    return {
        "full": None,
        "sink": f'sink(budget={budget}, sinks={BLOCK}, positions="absolute")',
        "quest": f"quest(budget={budget})",
        "infllm": f"infllm(budget={budget}, n_init={2 * BLOCK}, repr_topk={BLOCK}, "
        'far_position="absolute")',
    }


def timed(shape: str, rows: int, seen: int, budget: int) -> list[dict[str, Any]]:
    """The times of one step of rows that see so many tokens each."""
    from triton.testing import do_bench

    Hkv, G, D = SHAPES[shape]
    begun = -(-seen // BLOCK)
    cache = torch.randn(rows * begun + 1, Hkv, BLOCK, 2 * D, dtype=torch.bfloat16, device="cuda")
    owned = (torch.randperm(rows * begun, device="cuda") + 1).view(rows, begun).int()
    rates = 10000.0 ** (-torch.arange(0, D, 2, device="cuda") / D)
    angles = torch.arange(seen, device="cuda")[:, None] * rates
    rope = RopeTable(torch.cat((angles.cos(), angles.sin()), dim=-1), halves=True)
    q, k, v = (
        torch.randn(rows, H, D, dtype=torch.bfloat16, device="cuda") for H in (Hkv * G, Hkv, Hkv)
    )
    step: dict[str, Any] = {
        "num_actual_tokens": rows,
        "query_start_loc": torch.arange(rows + 1, dtype=torch.int32, device="cuda"),
        "seq_lens": torch.full((rows,), seen, dtype=torch.int32, device="cuda"),
        "max_query_len": 1,
        "max_seq_len": seen,
        "block_table": owned,
        "slot_mapping": owned[:, -1].long() * BLOCK + (seen - 1) % BLOCK,
    }
    past, new, prompt = (np.full(rows, n, dtype=np.int64) for n in (seen - 1, 1, 1))
    results: list[dict[str, Any]] = []
    for name, text in policies(budget).items():
        policy = policy_of(text or policies(budget)["sink"], BLOCK)
        layer = layer_of(kernel_of("cuda"), policy, rope, Hkv, G, D)
        if policy.best:
            layer.remember(cache).data.normal_()
        plans = []
        for _ in range(9):
            begin = perf_counter()
            reads = StepReads()
            if text is not None:
                step_queries = queries(policy, past, new, prompt)
                reads = StepReads.planned(policy, step_queries, past, new, owned, Hkv)
            plans.append(1000 * (perf_counter() - begin))
        metadata, out = Metadata(**vars(reads), **step), torch.empty_like(q)

        def run(layer: Any = layer, metadata: Any = metadata, out: Any = out) -> None:
            layer.calls.clear()
            layer.forward(None, q, k, v, cache, metadata, out)

        step_ms = do_bench(run, return_mode="median")
        full_ms = results[0]["step_ms"] if results else step_ms
        results.append(
            {
                "shape": shape,
                "rows": rows,
                "context": seen,
                "policy": name,
                "step_ms": step_ms,
                "plan_ms": median(plans),
                "times_full": full_ms / step_ms,
                "keys_read": seen if text is None else int(policy.tokens_read(past[:1] + 1)[0]),
            }
        )
    return results


def main() -> None:
    """Measure and print."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    flags.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    flags.add_argument("--contexts", nargs="+", type=int, default=[2048, 8192, 32768])
    flags.add_argument("--rows", nargs="+", type=int, default=[1, 16])
    flags.add_argument("--budget", type=int, default=1024)
    options = flags.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        results = [
            result
            for shape in options.shapes
            for seen in options.contexts
            for rows in options.rows
            for result in timed(shape, rows, seen, options.budget)
        ]
    device = torch.cuda.get_device_name()
    print(json.dumps({"device": device, "torch": torch.__version__, "rows": results}))


if __name__ == "__main__":
    main()
