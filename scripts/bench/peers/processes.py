"""Several processes that decode a share of the prompts each, at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
from no_attention import rest_seconds

from attention.contract.backend import Backend
from attention.errors import InvalidValue
from experiments.grid.models import LoadedModel, find, load
from peers.bound import Bound, bound, compiled_step
from peers.ours import Decoding
from peers.work import PeerError, Run, Tokens, Work

#: What a process says: why it could not, and what it made.
Answer = tuple[str | None, Any]
WAIT = 10  # seconds in which a process that is no longer asked ends


class Processes:
    """Processes with a model each, started once; every so-manieth prompt is theirs.

    Args:
        work: all prompts; its threads are shared out, one at least each.
        model: its name.
        count: of processes.

    Raises:
        PeerError: a process ended before it was ready.
    """

    def __init__(self, work: Work, model: str, count: int) -> None:
        context = get_context("spawn")  # a fork would copy the locks of threads
        self.shares = [list(range(first, len(work.prompts), count)) for first in range(count)]
        self._pipes: list[Connection] = []
        self._children: list[Any] = []
        threads = max(1, work.threads // count)
        for share in self.shares:
            ours, theirs = context.Pipe()
            prompts = [list(work.prompts[place]) for place in share]
            child = context.Process(
                target=_work, args=(theirs, model, prompts, threads), daemon=True
            )
            child.start()
            theirs.close()  # so that the end of the child is the end of the pipe
            self._pipes.append(ours)
            self._children.append(child)
        self._answers()  # ready

    def run(
        self, backend: Backend, engine: str, compiled: bool, given: Tokens | None, limit: int
    ) -> Run:
        """Decode all prompts; seconds from when all are ready until the last one is done.

        Args:
            backend, engine: how they attend.
            compiled: whether their decode steps are.
            given: tokens that are forced on each prompt; None lets them choose.
            limit: most tokens of a prompt.

        Raises:
            PeerError: a process ended, or could not do it.
        """
        made, taken = self._all(
            [_Decode(backend, engine, compiled, limit, _of(given, share)) for share in self.shares]
        )
        tokens: dict[int, list[int]] = {}
        for share, rows in zip(self.shares, made, strict=True):
            tokens.update(zip(share, rows, strict=True))
        return Run([tokens[place] for place in sorted(tokens)], taken)

    def bound(self, outputs: Tokens, bandwidth: float) -> Bound:
        """The bound of the process that has most to do; all measure theirs at the same time.

        Args:
            outputs: of all prompts.
            bandwidth: bytes a second, which they share.

        Raises:
            PeerError: a process ended.
        """
        each = bandwidth / len(self.shares)
        made: list[Bound]
        made, _ = self._all([_Least(_of(outputs, share) or [], each) for share in self.shares])
        return max(made, key=lambda least: least.seconds)

    def _all(self, jobs: Sequence[_Job]) -> tuple[list[Any], float]:
        """What each process makes of its job, and the seconds until the last one is done."""
        self._tell(jobs)
        self._answers()  # ready
        started = time.perf_counter()
        self._tell(["go"] * len(jobs))
        self._answers()  # done
        taken = time.perf_counter() - started
        made = []
        for reason, found in self._answers():
            if reason is not None:
                raise PeerError(reason)
            made.append(found)
        return made, taken

    def _tell(self, each: Sequence[object]) -> None:
        try:
            for pipe, what in zip(self._pipes, each, strict=True):
                pipe.send(what)
        except OSError as error:
            raise PeerError("a process ended") from error

    def _answers(self) -> list[Answer]:
        """What each process says next."""
        try:
            return [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError) as error:
            raise PeerError("a process ended") from error

    def close(self) -> None:
        """End them."""
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            child.join(WAIT)
            child.kill()
            child.join()


class _Job(Protocol):
    """What a process is asked to do."""

    def ready(self, loaded: LoadedModel, prompts: Tokens) -> Callable[[], Any]:
        """All that is not timed; what is comes with the call."""


@dataclass(frozen=True)
class _Decode:
    backend: Backend
    engine: str
    compiled: bool
    limit: int
    given: Tokens | None

    def ready(self, loaded: LoadedModel, prompts: Tokens) -> Callable[[], Tokens]:
        model, tokenizer, table = loaded.model, loaded.tokenizer, loaded.token_bytes
        way = (self.backend, self.engine, self.given, self.compiled)
        decoding = Decoding(model, tokenizer, table, prompts, *way)
        return lambda: decoding(self.limit).tokens


@dataclass(frozen=True)
class _Least:
    outputs: Tokens
    bandwidth: float

    def ready(self, loaded: LoadedModel, prompts: Tokens) -> Callable[[], Bound]:
        rest = partial(rest_seconds, step=compiled_step(loaded.model))
        return lambda: bound(loaded.model, prompts, self.outputs, self.bandwidth, rest)


def _of(rows: Tokens | None, share: Sequence[int]) -> Tokens | None:
    return None if rows is None else [rows[place] for place in share]


def _work(pipe: Connection, name: str, prompts: Tokens, threads: int) -> None:
    """A process: load, say so, and work as often as asked."""
    torch.set_num_threads(threads)
    loaded = load(find(name), "float32", "cpu")
    nothing: Answer = (None, [])
    pipe.send(nothing)
    try:
        while True:
            job: _Job = pipe.recv()
            timed = job.ready(loaded, prompts)
            pipe.send(nothing)
            pipe.recv()  # go
            answer = nothing
            try:
                answer = (None, timed())
            except InvalidValue as error:
                answer = (str(error), [])
            pipe.send(nothing)  # done; the way of what was made is not timed
            pipe.send(answer)
    except (EOFError, OSError):
        return  # nobody asks any more
