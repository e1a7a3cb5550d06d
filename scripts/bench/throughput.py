"""Tokens a second of the decode loop and of transformers and vLLM, on the same prompts.

    python scripts/bench/throughput.py                          # every backend, minutes
    python scripts/bench/throughput.py --backends full,h2o --repeats 1 --problems 8
    python scripts/bench/throughput.py --vllm ~/envs/vllm/bin/python

All runs take turns in one process with the same threads; medians of the turns are printed, the
prompts' reading included. full: times faster than our full attention, per token, the median over
turns. same: outputs that equal our full attention's token for token. A sparse backend chooses
tokens of its own, so its outputs have other lengths.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from programs import Column, conditions, measuring, names, one_message, parser, printed, table
from transformers import GenerationConfig

from attention.core import devices
from attention.errors import InvalidValue, check_choice, check_int
from experiments import bench
from experiments.grid.models import REASONER, LoadedModel, find, load, use_threads
from experiments.reasoner import LEVELS, problem
from lil import Request, decode
from lil.decoding.entry import eos_ids

BACKENDS = ("full", "h2o", "sink", "quest", "infllm", "tova", "snapkv", "rkv", "raas")
COLUMNS = (
    Column("", "peer", words=True),
    Column("tokens", "tokens", ","),
    Column("s", "seconds", ".2f"),
    Column("tok/s", "tokens_per_s", ",.0f"),
    Column("full", "times_full", ".2f"),
    Column("same", "same", words=True),
)
Tokens = list[list[int]]
#: Decodes every prompt to at most so many tokens: outputs and seconds.
Peer = Callable[[int], tuple[Tokens, float]]


def throughput(
    backends: Sequence[str] = BACKENDS,
    budget: int = 128,
    level: str = "medium",
    problems: int = 32,
    max_new_tokens: int = 1024,
    single: int = 8,
    repeats: int = 3,
    compile_: str = "off",
    vllm: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Decode the same problems greedily in float32 by every peer, in turns.

    Args:
        backends: of `lil.decode`; full attention is always among them.
        budget: tokens a decode query may read.
        level, problems: problems of the split `study`, and how many: also the batch.
        max_new_tokens: most generated tokens of a prompt.
        single: prompts that transformers decodes one at a time; 0 leaves that out.
        repeats: timed turns.
        compile_: "on" compiles our decode steps.
        vllm: Python of an environment with vLLM; None leaves it out.
        progress: receives what runs next.

    Raises:
        InvalidValue: an unknown name or a number out of range.
    """
    check_choice("level", level, LEVELS)
    sizes = {"problems": problems, "repeats": repeats, "max_new_tokens": max_new_tokens}
    for name, value in sizes.items():
        check_int(name, value, 1)
    if vllm is not None and not os.access(Path(vllm).expanduser(), os.X_OK):
        raise InvalidValue("vllm", vllm, "the path of a Python that has vllm")
    loaded = load(find(REASONER), "float32", "cpu")
    texts = [problem(level, "study", index).prompt for index in range(problems)]
    prompts = [list(loaded.tokenizer(text)["input_ids"]) for text in texts]
    peers: dict[str, Peer] = {"lil full": _decoding(loaded, prompts, "full", budget, compile_)}
    peers["transformers, padded batch"] = _transformers(loaded, prompts, len(prompts))
    if single:
        peers[f"transformers, one at a time ({single})"] = _transformers(
            loaded, prompts[:single], 1
        )
    for name in backends:
        if name != "full":
            peers[f"lil {name}"] = _decoding(loaded, prompts, name, budget, compile_)
    if vllm is not None:
        peers["vLLM"] = _vllm(Path(vllm).expanduser(), loaded.source.location, prompts)
    for name, peer in peers.items():  # untimed: compilers, caches and engines start
        progress(f"{name}: first run")
        peer(8)
    runs: dict[str, list[tuple[Tokens, float]]] = {name: [] for name in peers}
    for turn in range(repeats):
        for name, peer in peers.items():
            progress(f"turn {turn + 1}: {name}")
            runs[name].append(peer(max_new_tokens))
    return {
        "rows": [_row(name, runs[name], runs["lil full"]) for name in peers],
        "level": level,
        "prompt_tokens": sum(map(len, prompts)),
        "budget": budget,
        "compile": compile_,
        **sizes,
        **bench.conditions(),
    }


def _row(
    name: str, runs: Sequence[tuple[Tokens, float]], full: Sequence[tuple[Tokens, float]]
) -> dict[str, Any]:
    outputs = runs[0][0]
    rates = [sum(map(len, tokens)) / seconds for tokens, seconds in runs]
    full_rates = [sum(map(len, tokens)) / seconds for tokens, seconds in full]
    ratios = [rate / base for rate, base in zip(rates, full_rates, strict=True)]
    same = sum(row == expected for row, expected in zip(outputs, full[0][0], strict=False))
    return {
        "peer": name,
        "tokens": sum(map(len, outputs)),
        "seconds": statistics.median(seconds for _, seconds in runs),
        "tokens_per_s": statistics.median(rates),
        "times_full": None if name == "lil full" else statistics.median(ratios),
        "same": f"{same}/{len(outputs)}",
    }


def _decoding(
    loaded: LoadedModel, prompts: Tokens, backend: str, budget: int, compile_: str
) -> Peer:
    method = bench.sparse(backend, budget)

    def run(limit: int) -> tuple[Tokens, float]:
        began = time.perf_counter()
        traces = decode(
            loaded.model,
            loaded.tokenizer,
            [Request(prompt, max_new_tokens=limit) for prompt in prompts],
            backend=method,
            batch_size=len(prompts),
            token_bytes=loaded.token_bytes,
            compile=compile_,
        )
        return [list(trace.new_ids) for trace in traces], time.perf_counter() - began

    return run


def _transformers(loaded: LoadedModel, prompts: Tokens, at_once: int) -> Peer:
    ends = eos_ids(loaded.model, loaded.tokenizer)
    pad: int = loaded.tokenizer.pad_token_id

    def batch(rows: Tokens, limit: int) -> Tokens:
        width = max(map(len, rows))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        greedy = GenerationConfig(
            do_sample=False, max_new_tokens=limit, eos_token_id=sorted(ends), pad_token_id=pad
        )
        with devices.flash_first(loaded.model.device):
            made = loaded.model.generate(
                input_ids=ids, attention_mask=mask, generation_config=greedy
            )[:, width:].tolist()
        # What a padded batch computes behind a row's end is no output.
        cut = [next((i + 1 for i, t in enumerate(row) if t in ends), len(row)) for row in made]
        return [row[:length] for row, length in zip(made, cut, strict=True)]

    def run(limit: int) -> tuple[Tokens, float]:
        began = time.perf_counter()
        outputs: Tokens = []
        for first in range(0, len(prompts), at_once):
            outputs += batch(prompts[first : first + at_once], limit)
        return outputs, time.perf_counter() - began

    return run


def _vllm(python: Path, folder: str, prompts: Tokens) -> Peer:
    """vLLM on the CPU, with the threads that torch has here."""
    threads = torch.get_num_threads()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    worker = subprocess.Popen(
        [python, Path(__file__).with_name("vllm_worker.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(question) + "\n")
        worker.stdin.flush()
        answer: dict[str, Any] = json.loads(worker.stdout.readline() or "{}")
        if not answer:
            raise InvalidValue("vllm", str(python), "a Python in which vLLM starts")
        return answer

    ask({"folder": folder, "rows": len(prompts)})

    def run(limit: int) -> tuple[Tokens, float]:
        answer = ask({"prompts": prompts, "limit": limit})
        return answer["tokens"], answer["seconds"]

    return run


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--backends", type=names, default=BACKENDS, help="full always runs")
    flags.add_argument("--level", default="medium", help="easy, medium or hard (medium)")
    for name, default, line in (
        ("budget", 128, "tokens a query may read"),
        ("problems", 32, "prompts, all in one batch"),
        ("max-new-tokens", 1024, "most generated tokens of a prompt"),
        ("single", 8, "prompts that transformers decodes one at a time; 0 leaves that out"),
        ("repeats", 3, "timed turns; the median counts"),
    ):
        flags.add_argument(f"--{name}", type=int, default=default, help=f"{line} ({default})")
    flags.add_argument("--compile", choices=("off", "on"), default="off", help="our decode steps")
    flags.add_argument("--threads", type=int, help="of torch; all cores, or OMP_NUM_THREADS")
    flags.add_argument("--vllm", help="Python of an environment with vLLM (scripts/vllm_env)")
    args = flags.parse_args(argv)
    use_threads(args.threads)
    options = {n: v for n, v in vars(args).items() if n not in ("json", "threads", "compile")}
    with measuring() as progress:
        result = throughput(**options, compile_=args.compile, progress=progress)
    title = f"{args.problems} problems of {args.level}: medians of {args.repeats} turns"
    return printed(result, args.json, table(title, COLUMNS, result["rows"]), conditions(result))


if __name__ == "__main__":
    sys.exit(main())
