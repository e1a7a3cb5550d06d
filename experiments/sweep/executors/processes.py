"""Workers that are processes of this machine."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any

from attention.errors import InvalidValue
from experiments.sweep.decoder import Ended, Job, Lost, Said, Setup
from experiments.sweep.executors.contract import Tell
from experiments.sweep.executors.worker import Ready, Refused, serve

#: What takes seconds to import, once for all workers; a model of any family needs most of it.
_HEAVY = (
    *("torch", "transformers.models.auto.modeling_auto"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.qwen3.modeling_qwen3"),
    *("attention.methods", "experiments.sweep.executors.worker"),
)

#: Starts that fail one after the other before no more are tried.
STARTS = 2


@dataclass
class _Worker:
    """A process, its end of the line, and what it is at."""

    process: Any
    line: Connection
    ready: bool = False
    busy: bool = False


class Processes:
    """Workers that are started when there is something to do for them.

    Those that die are replaced as long as there is; what they were at is told as lost.

    Args:
        setups: of each worker there may be.
    """

    def __init__(self, setups: Sequence[Setup]) -> None:
        self.found: Mapping[str, Any] = {}
        self._setups = setups
        self._workers: dict[int, _Worker] = {}
        self._failed_starts = 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers.values():
            worker.line.close()
            worker.process.kill()  # it writes nothing, so nothing can be half-written
        for worker in self._workers.values():
            worker.process.join()
        self._workers.clear()

    # ------------------------------------------------------------ jobs

    def hire(self, jobs: int) -> None:
        """Start workers while there are more jobs than workers without one."""
        if self._workers and self._failed_starts >= STARTS:
            return
        spare = sum(not worker.busy for worker in self._workers.values())
        vacant = [at for at in range(len(self._setups)) if at not in self._workers]
        for at in vacant[: max(0, jobs - spare)]:
            self._workers[at] = _started(self._setups[at])

    def free(self) -> Sequence[int]:
        """Workers that are ready and have no job."""
        return [at for at, worker in self._workers.items() if worker.ready and not worker.busy]

    def submit(self, worker: int, job: Job) -> None:
        """Send it; a worker that has died is noticed when it is listened to."""
        chosen = self._workers[worker]
        chosen.busy = True
        with suppress(OSError):
            chosen.line.send(job)

    def wait(self, tell: Tell) -> None:
        """Listen to all workers until one says something or dies.

        Raises:
            InvalidValue: a model that does not load, or no worker can start.
        """
        lines = {worker.line: at for at, worker in self._workers.items()}
        for line in connections.wait([*lines]):
            assert isinstance(line, Connection)
            self._listen(lines[line], tell)

    def _listen(self, at: int, tell: Tell) -> None:
        worker = self._workers[at]
        try:
            event = worker.line.recv()
        except (EOFError, OSError):
            self._bury(at, tell)
            return
        if isinstance(event, Refused):
            event.raised()
        if isinstance(event, Ready):
            worker.ready, self._failed_starts = True, 0
            self.found = self.found or event.found
            return
        worker.busy = not isinstance(event, Ended)
        tell(at, event)

    def _bury(self, at: int, tell: Tell) -> None:
        """A worker has died."""
        worker = self._workers.pop(at)
        worker.line.close()
        worker.process.join()
        reason = _reason(worker.process.exitcode)
        if worker.busy:
            tell(at, Lost(reason))
        if worker.ready:
            return
        self._failed_starts += 1
        if self._failed_starts < STARTS:
            return
        if not self._workers:
            allowed = f"a number of processes that can start (the last was {reason})"
            raise InvalidValue("workers", len(self._setups), allowed)
        tell(at, Said(f"a worker could not start ({reason}); {len(self._workers)} go on without"))


def _reason(code: int | None) -> str:
    """How a process ended."""
    if code is not None and code < 0:
        try:
            how = signal.Signals(-code).name
        except ValueError:
            how = f"signal {-code}"
        return f"killed by {how}, as a system does that has no memory left" if code == -9 else how
    return f"ended with exit code {code}"


# ---------------------------------------------------------------- starting


def prepare() -> None:
    """Let another process begin to import what all workers need, beside what comes next here."""
    from multiprocessing import forkserver

    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload([*_HEAVY])
        with _undisturbed():
            forkserver.ensure_running()


def _started(setup: Setup) -> _Worker:
    context = _context(setup.device)
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, setup), daemon=True)  # type: ignore[attr-defined]
    with _undisturbed():
        process.start()
    theirs.close()  # so that the line ends when the worker does
    return _Worker(process, ours)


def _context(device: str) -> BaseContext:
    """How processes are started.

    On the CPU they are forked from one that has all imported and done nothing; a fork of this one
    would take the locks of torch's threads along. What has looked at a GPU cannot be forked.
    """
    methods = multiprocessing.get_all_start_methods()
    method = "forkserver" if device == "cpu" and "forkserver" in methods else "spawn"
    return multiprocessing.get_context(method)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back signals that would end a process before it knows what to do about them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
