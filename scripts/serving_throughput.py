"""Throughput of vLLM with and without what we put into it, in one run.

    .venv-vllm/bin/python scripts/serving_throughput.py

Two engines, one of them without a line of ours, and the same requests with each value in turn,
several rounds: a ratio compares two runs that stand next to each other, and the median of rounds is
told with their extremes. Requests are as long as they are told to be, so that nothing but speed
differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# In one process: an engine of its own spins while it waits, on the cores that are timed.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from rich.console import Console
from rich.table import Table

from experiments.bench.timing import conditions
from experiments.reasoner import checkpoint_path, problem

PROCESSORS = ["LZPenalty", "DRYPenalty", "PresenceWindowPenalty", "StopOn"]
# Detectors that watch and never fire: what they do when they fire ends requests, which is faster.
ASKED: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "guardian": {"stop_on": "guardian(f=250, rate=0.0001)"},
    "recurrence": {"stop_on": "recurrence(run=100000)"},
    "cycle": {"stop_on": "cycle(repeats=100000)"},
    "lz derived": {"lz": "on"},
    "lz printed": {"lz_formula": "printed"},
    "lz rate": {"lz_formula": "rate"},
    "dry": {"dry": "on"},
    "presence_window": {"presence_window": "on"},
}


def engine(places: int, processors: bool) -> Any:
    import vllm

    names = [f"lil.serving.vllm:{name}" for name in PROCESSORS] if processors else None
    return vllm.LLM(
        str(checkpoint_path()),
        dtype="float32",
        max_num_seqs=places,
        enforce_eager=True,
        enable_prefix_caching=False,
        logits_processors=names,
        disable_log_stats=True,
    )


def seconds(llm: Any, prompts: list[str], tokens: int, extra: dict[str, Any] | None) -> float:
    import vllm

    # Something must be able to end a request that is watched; nothing here comes upon it.
    spare = 1
    params = vllm.SamplingParams(
        temperature=0,
        max_tokens=tokens,
        min_tokens=tokens,
        ignore_eos=True,
        stop_token_ids=[spare],
        extra_args=extra,
    )
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    spent = time.perf_counter() - begun
    assert all(len(one.outputs[0].token_ids) == tokens for one in outputs)
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=32, help="requests at once")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--asked", nargs="+", choices=list(ASKED), default=list(ASKED))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    prompts = [problem("medium", "test", i).prompt for i in range(args.batch)]
    engines = {ours: engine(args.batch, ours) for ours in (False, True)}
    for ours, llm in engines.items():
        for name in args.asked if ours else ["nothing"]:
            seconds(llm, prompts, 32, ASKED[name])
    ratios: dict[str, list[float]] = {name: [] for name in args.asked}
    plain = []
    for turn in range(args.rounds):
        for name in args.asked:
            spent = {
                ours: seconds(engines[ours], prompts, args.tokens, ASKED[name] if ours else None)
                for ours in ((False, True) if turn % 2 else (True, False))
            }
            ratios[name].append(spent[False] / spent[True])
            plain.append(spent[False])
    told = {
        "conditions": conditions(),
        "batch": args.batch,
        "tokens": args.tokens,
        "tokens_per_second_without": args.batch * args.tokens / statistics.median(plain),
        "throughput": {
            name: {
                "median": statistics.median(found),
                "least": min(found),
                "most": max(found),
                "rounds": len(found),
            }
            for name, found in ratios.items()
        },
    }
    if args.json:
        print(json.dumps(told))
        return 0
    table = Table(title="Throughput of vLLM with each, as a share of that without")
    for column in ("asked for", "median", "least", "most"):
        table.add_column(column, justify="left" if column == "asked for" else "right")
    for name, one in told["throughput"].items():
        table.add_row(name, *(f"{one[key]:.3f}" for key in ("median", "least", "most")))
    console = Console()
    console.print(table)
    console.print(f"{told['tokens_per_second_without']:,.0f} tokens a second without")
    console.print(told["conditions"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
