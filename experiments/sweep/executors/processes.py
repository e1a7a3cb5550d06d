"""Workers that are processes of this machine."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from tqdm import tqdm

from attention.errors import InvalidValue
from attention.local_modules import WithModules
from experiments.sweep.decoder import (
    ELSEWHERE,
    DecodeJob,
    Event,
    JobEnd,
    Remark,
    Setup,
    StepCount,
    WorkerLoss,
    WorkerPlace,
    decode,
)
from experiments.sweep.executors.contract import Executor, Report

#: What takes seconds to import, once for all workers; a model of any family needs most of it.
_HEAVY = (
    *("torch", "transformers.models.auto.modeling_auto"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.qwen3.modeling_qwen3"),
    *("attention.methods", "experiments.sweep.executors.processes"),
)

#: Seconds between two reports of steps: each wakes the process that listens.
EVERY = 0.1


#: What comes from a worker: where its model is, why it has none, or an event of its job.
Answer = WorkerPlace | InvalidValue | Event

#: Starts that fail one after the other before no more are tried.
STARTS = 2


@dataclass
class _Worker:
    """A process, the connection to it, whether its model is loaded and whether it has a job."""

    process: Any
    line: Connection
    ready: bool = False
    busy: bool = False


class Processes(Executor):
    """Processes that are started when there is something to do for them."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        super().__init__()
        self._setups = setups
        self._workers: dict[int, _Worker] = {}
        self._failed_starts = 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.line.close()
            worker.process.kill()  # it writes nothing, so nothing can be half-written
        for worker in self._workers.values():
            worker.process.join()
        self._workers.clear()

    def hire(self, jobs: int) -> None:
        """Start workers while there are more jobs than workers without one."""
        if self._workers and self._failed_starts >= STARTS:
            return
        spare = sum(not worker.busy for worker in self._workers.values())
        vacant = [at for at in range(len(self._setups)) if at not in self._workers]
        for at in vacant[: max(0, jobs - spare)]:
            self._workers[at] = self._started(at)

    def free(self) -> Sequence[int]:
        """Workers that are ready and have no job."""
        return [at for at, worker in self._workers.items() if worker.ready and not worker.busy]

    def _started(self, at: int) -> _Worker:
        setup = self._setups[at]
        context = _context(setup.device)
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, WithModules(setup)), daemon=True)  # type: ignore[attr-defined]
        with _undisturbed():
            process.start()
        theirs.close()  # so that the line ends when the worker does
        return _Worker(process, ours)

    def submit(self, worker: int, job: DecodeJob) -> None:
        """Send it; a worker that has died is noticed when it is listened to."""
        receiver = self._workers[worker]
        receiver.busy = True
        with suppress(OSError):
            receiver.line.send(job)

    def wait(self, report: Report) -> None:
        """Listen to all workers until one says something or dies."""
        lines = {worker.line: at for at, worker in self._workers.items()}
        for line in connections.wait([*lines]):
            assert isinstance(line, Connection)
            self._listen(lines[line], report)

    def _listen(self, at: int, report: Report) -> None:
        """A worker has loaded its model, cannot load it, reports an event, or is dead."""
        worker = self._workers[at]
        try:
            answer: Answer = worker.line.recv()
        except (EOFError, OSError):
            self._remove(at, report)
            return
        if isinstance(answer, InvalidValue):
            raise answer
        if isinstance(answer, dict):
            self._failed_starts, worker.ready = 0, True
            if not self.place or self.place.get("compile") == ELSEWHERE:
                self.place = answer
            return
        worker.busy = not isinstance(answer, JobEnd)
        report(at, answer)

    def _remove(self, at: int, report: Report) -> None:
        """Take a worker that died off the list."""
        worker = self._workers.pop(at)
        worker.line.close()
        worker.process.join()
        reason = _reason(worker.process.exitcode)
        if worker.ready:
            if worker.busy:
                report(at, WorkerLoss(reason))
            return
        self._failed_starts += 1
        left = len(self._workers)
        if self._failed_starts >= STARTS and not left:
            startable = f"a number of processes that can start (the last was {reason})"
            raise InvalidValue("workers", len(self._setups), startable)
        if self._failed_starts >= STARTS:
            report(at, Remark(f"a worker could not start ({reason}); {left} go on without"))


def _reason(code: int | None) -> str:
    """How a process ended."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as a system does that has no memory left"
    return f"ended with exit code {code}"


def prepare() -> None:
    """Let another process begin to import what all workers need, while this one goes on."""
    from multiprocessing import forkserver

    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload([*_HEAVY])
        with _undisturbed():
            forkserver.ensure_running()


def _context(device: str) -> BaseContext:
    """How processes are started."""
    methods = multiprocessing.get_all_start_methods()
    method = "forkserver" if device == "cpu" and "forkserver" in methods else "spawn"
    return multiprocessing.get_context(method)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back signals that would end a process before it knows what to do about them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(connection: Connection, setup: Setup) -> None:
    """Decode jobs until there is nobody to decode for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
    if hasattr(signal, "pthread_sigmask"):  # blocked while the process was started
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Of its own accord a progress bar makes a semaphore, which a killed process leaves behind.
    tqdm.set_lock(threading.RLock())
    try:
        try:
            loaded, place = setup.load()
        except InvalidValue as error:
            connection.send(error)
            return
        connection.send(place)
        while True:
            job = connection.recv()
            report = _reporter(connection)
            with closing(decode(loaded, job, report)) as events:
                for event in events:
                    connection.send(event)
            report(0)
            connection.send(JobEnd())
    except (EOFError, OSError):
        return  # nobody is there any more


def _reporter(connection: Connection) -> Callable[[int], None]:
    """A function that adds up tokens and reports them ten times a second, or for 0 at once."""
    sent, tokens = 0.0, 0

    def add(more: int) -> None:
        nonlocal sent, tokens
        tokens += more
        if more and time.monotonic() - sent <= EVERY:
            return
        try:
            connection.send(StepCount(tokens))
        except OSError:  # nobody listens any more; an error of the decoding would be tried again
            raise SystemExit from None
        sent, tokens = time.monotonic(), 0

    return add
