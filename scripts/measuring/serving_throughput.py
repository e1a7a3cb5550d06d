"""Throughput of vLLM with and without what we put into it, in one run.

    .venv-vllm/bin/python scripts/measuring/serving_throughput.py

An engine without a line of ours and one with it, in one process, decode the same requests, a few
steps each in turn, so that a machine whose speed changes changes it for both. Two of equal engines
differ by some 2% for as long as they live, so there are two of each and all four couples have their
turns: the share is that of all together, least and most are those of a couple. Requests are as long
as they are told to be, so that nothing but speed differs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# In one process: an engine of its own spins while it waits, on the cores that are timed.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from rich.console import Console
from rich.table import Table

from experiments.bench import conditions
from experiments.reasoner import checkpoint_path, problem

PROCESSORS = ["LZPenalty", "DRYPenalty", "PresenceWindowPenalty", "StopOn"]
# Detectors that watch and never fire: what they do when they fire ends requests, which is faster.
# A list has what each request asks for, by turns.
ASKED: dict[str, dict[str, Any] | list[dict[str, Any]] | None] = {
    "nothing": None,
    "guardian": {"stop_on": "guardian(f=250, rate=0.0001)"},
    "recurrence": {"stop_on": "recurrence(run=100000)"},
    "cycle": {"stop_on": "cycle(repeats=100000)"},
    "lz derived": {"lz": "on"},
    "lz printed": {"lz_formula": "printed"},
    "lz rate": {"lz_formula": "rate"},
    "lz of 32 strengths": [{"lz_alpha": 0.15 + at / 1000} for at in range(32)],
    "dry": {"dry": "on"},
    "presence_window": {"presence_window": "on"},
}


def engine(places: int, processors: int) -> Any:
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


def turns(
    engines: dict[bool, Any],
    prompts: list[str],
    tokens: int,
    steps: int,
    asked: dict[str, Any] | list[dict[str, Any]] | None,
) -> list[tuple[float, float]]:
    """Seconds of the engine without and of the one with, of the same few steps each, in turn."""
    import vllm

    # Something must be able to end a request that is watched; nothing here comes upon it.
    spare = 1
    counted: dict[bool, int] = dict.fromkeys(engines, 0)
    for ours, llm in engines.items():
        for at, prompt in enumerate(prompts):
            extra = asked[at % len(asked)] if isinstance(asked, list) else asked
            params = vllm.SamplingParams(
                temperature=0,
                max_tokens=tokens,
                min_tokens=tokens,
                ignore_eos=True,
                stop_token_ids=[spare],
                extra_args=extra if ours else None,
            )
            llm.llm_engine.add_request(str(at), prompt, params)
    pairs: list[tuple[float, float]] = []
    while any(llm.llm_engine.has_unfinished_requests() for llm in engines.values()):
        spent = {}
        for ours in (False, True) if len(pairs) % 2 else (True, False):
            one = engines[ours].llm_engine
            begun = time.perf_counter()
            for _ in range(steps):
                for output in one.step() if one.has_unfinished_requests() else ():
                    if output.finished:
                        counted[ours] += len(output.outputs[0].token_ids)
            spent[ours] = time.perf_counter() - begun
        pairs.append((spent[False], spent[True]))
    assert set(counted.values()) == {tokens * len(prompts)}
    return pairs


def share(pairs: list[tuple[float, float]]) -> float:
    """Throughput with as a share of that without: of all steps together."""
    return sum(without for without, _ in pairs) / sum(ours for _, ours in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=32, help="requests at once")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each")
    parser.add_argument(
        "--steps", type=int, default=10, help="of one engine before it is the other's turn"
    )
    parser.add_argument("--asked", nargs="+", choices=list(ASKED), default=list(ASKED))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints must not stand before the document
    prompts = [problem("medium", "test", i).prompt for i in range(args.batch)]
    # The order in which engines begin must be nobody's advantage.
    first, second, third, fourth = (engine(args.batch, ours) for ours in (0, 1, 1, 0))
    couples = [{False: one, True: two} for one in (first, fourth) for two in (second, third)]
    for name in args.asked:
        for couple in couples[::3]:
            turns(couple, prompts, 32, args.steps, ASKED[name])
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in args.asked}
    for couple in couples:
        for name in args.asked:
            found[name].append(turns(couple, prompts, args.tokens, args.steps, ASKED[name]))
    every = {name: [pair for turn in each for pair in turn] for name, each in found.items()}
    without = sum(spent for pairs in every.values() for spent, _ in pairs)
    told = {
        **conditions(),
        "engine": f"vllm-cpu {importlib.metadata.version('vllm-cpu')}",
        "batch": args.batch,
        "tokens": args.tokens,
        "steps_a_turn": args.steps,
        "tokens_per_second_without": 4 * len(found) * args.batch * args.tokens / without,
        "throughput": {
            name: {
                "share": share(pairs),
                "least": min(map(share, found[name])),
                "most": max(map(share, found[name])),
                "turns": len(pairs),
            }
            for name, pairs in every.items()
        },
    }
    if args.json:
        print(json.dumps(told), file=answers, flush=True)
        return 0
    table = Table(title="Throughput of vLLM with each, as a share of that without")
    for column in ("asked for", "share", "least", "most"):
        table.add_column(column, justify="left" if column == "asked for" else "right")
    for name, one in told["throughput"].items():
        table.add_row(name, *(f"{one[key]:.3f}" for key in ("share", "least", "most")))
    console = Console(file=answers)
    console.print(table)
    console.print(f"{told['tokens_per_second_without']:,.0f} tokens a second without")
    console.print(conditions())
    return 0


if __name__ == "__main__":
    sys.exit(main())
