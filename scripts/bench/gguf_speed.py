"""Tokens a second of a model in a GGUF file, beside transformers, vLLM and llama.cpp.

    python scripts/bench/gguf_speed.py smollm2        # brought by scripts/real_models
    python scripts/bench/gguf_speed.py qwen.gguf --batches 1,16 --backends full --repeats 1

scripts/vllm_env and scripts/llama_env install the two engines into environments of their own.

Rows of a batch are short questions for a long story, greedy, so that all go on for as long as they
may; prompts' reading is included. Ours has a compiled step, kept in the user's cache. Peers take
turns; medians count. Weights: what linear layers multiply with. vLLM gets what our converted folder
holds, llama.cpp the file itself, and the same weights in its blocks of 8 bits, made for this.
bound: the weights' bytes of all steps at the measured bandwidth, as a share of the seconds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attention_speed import bandwidth
from peers.eight_bits import in_eight_bits
from peers.llama_peer import Llama
from peers.others import Transformers
from peers.vllm_peer import VLLM, python_with_vllm
from peers.work import PeerError, Run, Work, timed
from programs import Column, conditions, counts, measuring, names, one_message, parser, printed
from programs import table as made_table
from torch import nn

import lil
from attention.contract.backend import Backend
from attention.user_cache import user_cache
from experiments import bench
from experiments.grid import models
from experiments.grid.int8 import Int8Linear
from experiments.grid.models import LoadedModel, use_threads
from experiments.sweep.decoder import compile_step
from lil.decoding.entry import eos_ids

COLUMNS = (
    Column("batch", "batch"),
    Column("", "peer", words=True),
    Column("weights", "weights", words=True),
    Column("tokens", "tokens", ","),
    Column("s", "seconds", ".2f"),
    Column("tok/s", "tokens_per_s", ",.1f"),
    Column("vLLM", "times_vllm", ".2f"),
    Column("llama.cpp", "times_llama", ".2f"),
    Column("bound", "of_bound", ".0%"),
)
#: Ours and transformers': dtype, and what linear layers multiply with.
WEIGHTS = {"float32": ("float32", "stored"), "bfloat16": ("bfloat16", "stored"),
           "int8": ("float32", "int8")}  # fmt: skip
_WHO = ("fox", "clockmaker", "ferryman", "gardener", "violinist", "cartographer", "owl", "baker")
_WHERE = ("in a city without maps", "on an island of glass", "under a frozen lake",
          "at the end of a railway")  # fmt: skip

#: A way to do the work: its name, its weights, and what runs it.
Way = tuple[str, str, Callable[[int], Run]]


def real_models(
    file: str,
    batches: Sequence[int] = (1, 16, 32),
    backends: Sequence[str] = ("full", "h2o", "quest"),
    budget: int = 128,
    weights: Sequence[str] = ("bfloat16", "int8"),
    tokens: int = 128,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Every peer on the same prompts, in turns.

    Args:
        file: GGUF, or a name of `scripts/real_models`.
        batches: rows decoded together.
        backends: of ours; those with a budget get `budget`.
        budget: tokens a decode query may read.
        weights: of `WEIGHTS`.
        tokens: most generated tokens of a prompt.
        repeats: timed runs of each.
        progress: told what is run next.
    """
    loaded, file, about = {}, brought(file), dict[str, Any]()
    for name in weights:
        progress(f"loading in {name}")
        dtype, kind = WEIGHTS[name]
        loaded[name] = models.load(models.find(file, weights=kind), dtype, "cpu")
        progress(f"compiling a step in {name}")
        about[name] = compile_step(loaded[name], bench.sparse("full", budget), "on", 0)
    speed = bandwidth("cpu")
    rows, missing = [], dict[str, str]()
    for batch in batches:
        work = _work(next(iter(loaded.values())), batch, tokens)
        with ExitStack() as stack:
            progress(f"starting the peers for batch {batch}")
            ways = list(_ways(loaded, work, file, backends, budget, stack, missing, about))
            seconds: dict[tuple[str, str], list[float]] = {}
            made: dict[tuple[str, str], int] = {}
            for turn in range(repeats + 1):
                for name, kind, run in ways:
                    progress(f"{name}, {kind}, batch {batch}")
                    found = run(8 if turn == 0 else tokens)
                    if turn:
                        seconds.setdefault((name, kind), []).append(found.seconds)
                        made[name, kind] = sum(map(len, found.tokens))
        rows += _rows(batch, seconds, made, loaded, speed)
    return {
        "rows": rows,
        "missing": missing,
        "model": Path(file).stem,
        "budget": budget,
        "tokens": tokens,
        "repeats": repeats,
        "peers": about,
        "bandwidth_bytes_per_s": speed,
        **bench.conditions(),
        "device": bench.device_name("cpu"),
    }


def brought(file: str) -> str:
    """The path of a file that is here, or is brought by its name."""
    if Path(file).exists():
        return file
    script = Path(__file__).parents[1] / "real_models"
    done = subprocess.run([script, file], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def _work(loaded: LoadedModel, batch: int, tokens: int) -> Work:
    texts = [
        f"Write a very long story, of many chapters, about a {_WHO[i % len(_WHO)]} "
        f"{_WHERE[i // len(_WHO) % len(_WHERE)]}, beginning in the year {1700 + i}."
        for i in range(batch)
    ]
    chat = loaded.tokenizer.apply_chat_template
    prompts = [
        chat([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
        for text in texts
    ]
    eos = eos_ids(loaded.model, loaded.tokenizer)
    return Work(
        folder=loaded.source.location,
        prompts=tuple(tuple(ids) for ids in prompts),
        max_new_tokens=tokens,
        eos=eos,
        pad=min(eos),
        threads=torch.get_num_threads(),
    )


def _ways(
    loaded: dict[str, LoadedModel],
    work: Work,
    file: str,
    backends: Sequence[str],
    budget: int,
    stack: ExitStack,
    missing: dict[str, str],
    about: dict[str, Any],
) -> Iterator[Way]:
    """Every way that works here; of the others why not goes to `missing`."""
    for name, one in loaded.items():
        for backend in backends:
            built = bench.sparse(backend, budget)
            told = backend if built.budget is None else f"{backend} {budget}"
            yield told, name, partial(_ours, one, work, built)
        if name != "int8":
            every = range(len(work.prompts))
            yield "transformers", name, Transformers(one.model, work, every, None)
    try:
        python = python_with_vllm(None)
        for name in loaded:
            if name != "int8":
                engine = VLLM(python, work, name)
                stack.callback(engine.close)
                about["vLLM"] = engine.about
                yield "vLLM", name, partial(engine.run, work.prompts, endless=True)
    except PeerError as error:
        missing["vLLM"] = str(error)
    eight = user_cache("gguf") / f"{Path(work.folder).name}-q8_0.gguf"
    try:
        for kind, path in (("as in the file", Path(file)), ("Q8_0", eight)):
            if kind == "Q8_0":
                in_eight_bits(Path(file), eight)
            llama = Llama(path, work)
            stack.callback(llama.close)
            about["llama.cpp"] = llama.about
            yield "llama.cpp", kind, llama
    except PeerError as error:
        missing["llama.cpp"] = str(error)


def _ours(loaded: LoadedModel, work: Work, backend: Backend, limit: int) -> Run:
    def make() -> list[list[int]]:
        traces = lil.decode(
            loaded.model,
            loaded.tokenizer,
            work.prompts,
            backend=backend,
            batch_size=len(work.prompts),
            max_new_tokens=limit,
            token_bytes=loaded.token_bytes,
            compile="kept",
        )
        return [list(trace.new_ids) for trace in traces]

    return timed(make)


def _rows(
    batch: int,
    seconds: dict[tuple[str, str], list[float]],
    made: dict[tuple[str, str], int],
    loaded: dict[str, LoadedModel],
    speed: float,
) -> Iterator[dict[str, Any]]:
    def rate(peer: str, kinds: Sequence[str]) -> float | None:
        """The fastest of a peer's kinds of weights, in tokens a second."""
        found = [
            made[peer, kind] / statistics.median(seconds[peer, kind])
            for kind in kinds
            if (peer, kind) in seconds
        ]
        return max(found, default=None)

    for (peer, kind), times in seconds.items():
        taken = statistics.median(times)
        per_s = made[peer, kind] / taken
        theirs = {
            "times_vllm": rate("vLLM", ["float32", "bfloat16"]),
            "times_llama": rate("llama.cpp", ["Q8_0"]),
        }
        least = None
        if kind in loaded:
            least = _weight_bytes(loaded[kind].model) * made[peer, kind] / batch / speed
        yield {
            "batch": batch,
            "peer": peer,
            "weights": kind,
            "tokens": made[peer, kind],
            "seconds": taken,
            "tokens_per_s": per_s,
            **{name: None if one is None else per_s / one for name, one in theirs.items()},
            "of_bound": None if least is None else least / taken,
        }


def _weight_bytes(model: Any) -> int:
    """Bytes of weights that a step reads: all but rows of the table of tokens."""
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    size = sum(one.nbytes for one in model.parameters())
    if not isinstance(head, nn.Linear) or head.weight is not table:
        size -= table.nbytes  # its rows are looked up, another table is multiplied
    whole = (one for one in model.modules() if isinstance(one, Int8Linear))
    return int(size + sum(one.out_features * one.in_features for one in whole))


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    flags = parser(__doc__)
    flags.add_argument("file", help="GGUF, or a name of scripts/real_models")
    flags.add_argument("--batches", type=counts, default=[1, 16, 32])
    flags.add_argument("--backends", type=names, default=["full", "h2o", "quest"])
    flags.add_argument("--budget", type=int, default=128)
    flags.add_argument("--weights", type=names, default=["bfloat16", "int8"])
    flags.add_argument("--tokens", type=int, default=128)
    flags.add_argument("--repeats", type=int, default=3)
    flags.add_argument("--threads", type=int, default=2)
    args = flags.parse_args(argv)
    use_threads(args.threads)
    with measuring() as progress:
        found = real_models(
            args.file, args.batches, args.backends, args.budget, args.weights, args.tokens,
            args.repeats, progress,
        )  # fmt: skip
    made = made_table(f"tokens a second, {found['model']}", COLUMNS, found["rows"])
    missing = [f"{peer}: {reason}" for peer, reason in found["missing"].items()]
    return printed(found, args.json, made, *missing, conditions(found))


if __name__ == "__main__":
    sys.exit(main())
