"""Every peer on the same prompts, in turn, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from attention_speed import bandwidth
from no_attention import rest_seconds

from attention.contract.backend import Backend
from attention.engines import ENGINES
from attention.engines import select as chosen
from attention.errors import check_choice, check_int
from experiments.bench import conditions
from experiments.grid.models import REASONER, LoadedModel, find, load
from experiments.grid.plan import build_backends
from experiments.grid.presets import load as load_config
from experiments.reasoner import LEVELS, problem
from lil.decoding.entry import eos_ids
from peers.bound import Bound, bound, compiled_step
from peers.others import Continuous, Transformers
from peers.ours import Decoding
from peers.processes import Processes
from peers.results import measure, reached, rows_of
from peers.vllm_peer import VLLM, python_with_vllm
from peers.work import Measured, Peer, PeerError, Run, Tokens, Work

BACKENDS = ("full", "h2o", "sink", "quest", "infllm", "tova", "snapkv", "rkv", "raas")

#: What prompts longer than a budget ask of a method.
PARAMS: dict[str, dict[str, Any]] = {"raas": {"keep_prompt": False}}

#: Shares and ratios to be reached: of the bound, to vLLM, to transformers one at a time.
AIMS = {"of_bound": 0.85, "times_vllm": 2.0, "times_one": 20.0}


def peers(
    backends: Sequence[str] = BACKENDS,
    budget: int = 128,
    engines: Sequence[str] = (),
    level: str = "medium",
    problems: int = 32,
    max_new_tokens: int = 1024,
    one: int = 8,
    continuous: bool = True,
    workers: int = 2,
    repeats: int = 3,
    vllm: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Tokens a second of the shipped reasoner, float32, greedy, all prompts in one batch.

    Every peer makes the tokens of full attention, which are compared with ours; backends are given
    them token by token ("forced"), with compiled steps, so that they do equal work. Peers take
    turns, `repeats` times; medians count. The first, untimed run of each is short.

    Args:
        backends: of `lil.decode`; full attention is always among them.
        budget: tokens a decode query may read; other parameters are those of the demo.
        engines: names; those that work here if none is given, the fastest first.
        level, problems: which problems of the split `study`, and how many: also the batch.
        max_new_tokens: most generated tokens of a prompt.
        one: how many prompts are given one at a time, spread evenly; 0 leaves that out.
        continuous: whether transformers' own batching of requests takes part.
        workers: processes that share the threads and the prompts; below 2 leaves them out.
        repeats: timed runs of each.
        vllm: Python of an environment with vLLM; by default that of `scripts/vllm_env`, if there.
        progress: told what is run next.

    Raises:
        InvalidValue: an unknown name, or a number that cannot be.
    """
    check_choice("level", level, LEVELS)
    for name, value, lowest in (
        ("problems", problems, 1),
        ("repeats", repeats, 1),
        ("one", one, 0),
        ("workers", workers, 0),
        ("max_new_tokens", max_new_tokens, 2),
    ):
        check_int(name, value, lowest)
    grid = {"backends": list(backends) or ["full"], "budgets": [budget], "backend_params": PARAMS}
    built = build_backends(load_config("demo", grid))  # full attention is the first
    names = _engines(engines)
    if vllm is not None:
        python_with_vllm(vllm)  # refused before anything takes time
    loaded = load(find(REASONER), "float32", "cpu")
    work = _work(loaded, level, problems, max_new_tokens)
    speed = bandwidth("cpu")
    about: dict[str, Any] = {}
    with ExitStack() as stack:
        progress("full attention, for its tokens")
        expected = _decoding(loaded, work, built[0], names[0])(max_new_tokens).tokens
        progress("starting the peers")
        found = [
            *_transformers(loaded, work, one, continuous, stack),
            _vllm(work, vllm, stack, about),
        ]
        rest = partial(rest_seconds, step=compiled_step(loaded.model))
        own = Bounds(partial(bound, loaded.model, work.prompts, expected, speed, rest))
        found += _ours(loaded, work, built, names, expected, own)
        processes, shared = _processes(work, workers, stack), None
        if processes is not None:
            shared = Bounds(partial(processes.bound, expected, speed))
            found += _shared(processes, work, built, names[0], expected, shared)
        measure(found, repeats, max_new_tokens, progress)
    rows = rows_of(found, expected, names[0])
    return {
        "rows": rows,
        "bound": own.told(),
        "shared_bound": None if shared is None else shared.told(),
        "reached": reached(rows),
        "aims": AIMS,
        "level": level,
        "problems": problems,
        "prompt_tokens": sum(map(len, work.prompts)),
        "budget": budget,
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "dtype": "float32",
        "bandwidth_bytes_per_s": speed,
        "vllm": about,
        **conditions(),
    }


class Bounds:
    """A bound found anew before each run that is compared with it.

    Args:
        find: it.
    """

    def __init__(self, find: Callable[[], Bound]) -> None:
        self._find, self._found = find, list[Bound]()

    def __call__(self) -> float:
        """Its seconds as the machine is now."""
        self._found.append(self._find())
        return self._found[-1].seconds

    def told(self) -> dict[str, Any]:
        """The numbers of the median one."""
        of = sorted(self._found, key=lambda one: one.seconds)[len(self._found) // 2]
        return {**asdict(of), "seconds": of.seconds}


def _engines(given: Sequence[str]) -> list[str]:
    """Engines asked for, or those that work here."""
    cpu = torch.device("cpu")
    if given:
        return list(dict.fromkeys(chosen(name, cpu, torch.float32).name for name in given))
    return [one.name for one in ENGINES.values() if one.refusal(cpu, torch.float32) is None]


def _work(loaded: LoadedModel, level: str, problems: int, max_new_tokens: int) -> Work:
    texts = [problem(level, "study", index).prompt for index in range(problems)]
    return Work(
        folder=loaded.source.location,
        prompts=tuple(tuple(loaded.tokenizer(text)["input_ids"]) for text in texts),
        max_new_tokens=max_new_tokens,
        eos=eos_ids(loaded.model, loaded.tokenizer),
        pad=loaded.tokenizer.pad_token_id,
        threads=torch.get_num_threads(),
    )


def _transformers(
    loaded: LoadedModel, work: Work, one: int, continuous: bool, stack: ExitStack
) -> Iterator[Measured]:
    model, count = loaded.model, len(work.prompts)
    every = tuple(range(count))
    if one:
        some = tuple(i * count // min(one, count) for i in range(min(one, count)))
        yield Measured(
            Peer("transformers, one at a time", "one", some), Transformers(model, work, some, 1)
        )
    yield Measured(
        Peer("transformers, padded batch", "padded", every), Transformers(model, work, every, None)
    )
    if continuous:
        batching = Continuous(model, work)
        stack.callback(batching.close)
        yield Measured(Peer("transformers, generate_batch", "continuous", every), batching)


def _vllm(work: Work, named: str | None, stack: ExitStack, about: dict[str, Any]) -> Measured:
    """vLLM, started; what it says of itself goes to `about`."""
    peer = Peer("vLLM", "vllm", tuple(range(len(work.prompts))))
    try:
        engine = VLLM(python_with_vllm(named), work)
    except PeerError as error:
        return Measured(peer, reason=str(error))
    stack.callback(engine.close)
    about.update(engine.about)
    return Measured(peer, engine)


def _ours(
    loaded: LoadedModel,
    work: Work,
    backends: Sequence[Backend],
    engines: Sequence[str],
    given: Tokens,
    least: Bounds,
) -> Iterator[Measured]:
    """Full attention by each engine and compiled; then each backend, compiled, on given tokens."""
    every, fastest = tuple(range(len(work.prompts))), (engines[0], True)
    for engine, compiled in (*((engine, False) for engine in engines), fastest):
        peer = _peer(backends[0], every, engine, compiled)
        run = _decoding(loaded, work, backends[0], engine, compiled=compiled)
        yield Measured(peer, run, beside=least)
    full = _decoding(loaded, work, backends[0], *fastest, given)
    for backend in backends:
        peer = _peer(backend, every, *fastest, forced=True)
        run = _decoding(loaded, work, backend, *fastest, given)
        yield Measured(peer, run, beside=_beside(peer, full, work))


def _processes(work: Work, workers: int, stack: ExitStack) -> Processes | None:
    """Processes that share prompts and threads, started; None for fewer than two."""
    if workers < 2:
        return None
    processes = Processes(work, REASONER, workers)
    stack.callback(processes.close)
    return processes


def _shared(
    processes: Processes,
    work: Work,
    backends: Sequence[Backend],
    engine: str,
    given: Tokens,
    least: Bounds,
) -> Iterator[Measured]:
    """The same in several processes."""
    every, count = tuple(range(len(work.prompts))), len(processes.shares)
    for compiled in (False, True):
        peer = _peer(backends[0], every, engine, compiled, count)
        run = partial(processes.run, backends[0], engine, compiled, None)
        yield Measured(peer, run, beside=least)
    full = partial(processes.run, backends[0], engine, True, given)
    for backend in backends:
        peer = _peer(backend, every, engine, True, count, forced=True)
        run = partial(processes.run, backend, engine, True, given)
        yield Measured(peer, run, beside=_beside(peer, full, work))


def _peer(
    backend: Backend,
    every: tuple[int, ...],
    engine: str,
    compiled: bool,
    processes: int = 1,
    forced: bool = False,
) -> Peer:
    """A backend of ours by its name."""
    told = backend.name if backend.budget is None else f"{backend.name} {backend.budget}"
    ways = {"compiled": compiled, f"{processes} processes": processes > 1, "forced": forced}
    name = ", ".join([told, engine, *(way for way, holds in ways.items() if holds)])
    return Peer(name, "ours", every, backend.name, engine, processes, forced, compiled)


def _beside(peer: Peer, full: Callable[[int], Run], work: Work) -> Callable[[], float] | None:
    """Sparse backends on given tokens are compared with full attention in pairs."""
    return None if peer.backend == "full" else lambda: full(work.max_new_tokens).seconds


def _decoding(
    loaded: LoadedModel,
    work: Work,
    backend: Backend,
    engine: str,
    compiled: bool = False,
    given: Tokens | None = None,
) -> Decoding:
    table = loaded.token_bytes
    way = (backend, engine, given, compiled)
    return Decoding(loaded.model, loaded.tokenizer, table, work.prompts, *way)
