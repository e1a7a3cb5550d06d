"""Workers that are actors of a Ray cluster, each with a model of its own."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.config import Config
from experiments.sweep import decoder
from experiments.sweep.decoder import DecodeJob, Event, JobEnd, Setup, StepCount, WorkerPlace
from experiments.sweep.executors.contract import Report, Worker, Workers


class ModelActor:
    """A model on a node, and jobs decoded with it one after the other."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def load(self) -> WorkerPlace | InvalidValue:
        """Where the model is, for a manifest, or why it does not load."""
        try:
            self._loaded, place = self._setup.load()
        except InvalidValue as error:
            return error
        return place

    def decode(self, job: DecodeJob) -> Generator[Event, None, None]:
        """The events of a job; steps are counted with the next row that ends."""
        steps: list[int] = []
        with closing(decoder.decode(self._loaded, job, steps.append)) as events:
            for event in events:
                yield StepCount(sum(steps))
                steps.clear()
                yield event
        yield JobEnd()


@dataclass
class _Worker(Worker):
    """An actor, and what it computes: its model's place at first, then a job's events."""

    actor: Any
    awaited: Any


class OnRay(Workers[_Worker]):
    """Actors that are started, and replaced when they die, while there are jobs for them."""

    def __init__(self, ray: Any, setup: Setup, count: int, cpus: int, gpus: float) -> None:
        super().__init__(count)
        self._ray, self._setup = ray, setup
        # Restarted here, not by Ray: a job must not begin again where its rows are stored already.
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self._actor = ray.remote(**options)(ModelActor)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            self._ray.kill(worker.actor)
        self._workers.clear()

    def _started(self, at: int) -> _Worker:
        del at
        actor = self._actor.remote(self._setup)
        return _Worker(actor, actor.load.remote())

    def submit(self, worker: int, job: DecodeJob) -> None:
        """Send it; its events come as a stream."""
        receiver = self._workers[worker]
        receiver.busy = True
        receiver.awaited = receiver.actor.decode.options(num_returns="streaming").remote(job)

    def wait(self, report: Report) -> None:
        """Listen to all workers until one reports something or dies."""
        awaited = {at: w.awaited for at, w in self._workers.items() if w.busy or not w.ready}
        # A second at a time: Ctrl-C is not heard while it waits.
        ready, _ = self._ray.wait([*awaited.values()], num_returns=1, timeout=1.0)
        for at, what in awaited.items():
            if any(what is reference for reference in ready):
                self._listen(at, report)

    def _listen(self, at: int, report: Report) -> None:
        worker = self._workers[at]
        try:
            answer = self._ray.get(next(worker.awaited) if worker.ready else worker.awaited)
        except (self._ray.exceptions.RayError, StopIteration) as error:
            self._ray.kill(worker.actor)  # its node may live on
            reason = decoder.message(error)
            startable = f"a number of Ray actors that can start (the last: {reason})"
            self._remove(at, report, reason, startable)
            return
        self._on_answer(at, answer, report)


def require() -> Any:
    """The module `ray`."""
    try:
        with _own_signals():
            import ray
    except ImportError:
        allowed = "local; ray needs the package ray: `scripts/setup ray` installs it"
        raise InvalidValue("executor", "ray", allowed) from None
    return ray


@contextmanager
def opened(config: Config, setup: Setup) -> Iterator[OnRay]:
    """Workers on the cluster that a configuration names; a connection made here ends here."""
    ray = require()
    connected_before = ray.is_initialized()
    if not connected_before:
        _connect(ray, config.address)
    try:
        gpus = _gpus(ray.cluster_resources(), config.gpus_per_worker)
        with closing(OnRay(ray, setup, config.workers, config.threads or 1, gpus)) as executor:
            yield executor
    finally:
        if not connected_before:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing here calls home
    host, _, port = (address or "").rpartition(":")
    try:
        if host and port.isdigit() and "/" not in host:  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        with _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        allowed = f"a Ray cluster that can be reached ({decoder.message(error)})"
        raise InvalidValue("address", address or "none", allowed) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore SIGTERM's handler, which Ray replaces: without it no manifest would be finished."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _gpus(resources: Mapping[str, float], requested: float | None) -> float:
    """GPUs of each worker: as requested; otherwise one where the cluster has any."""
    most = resources.get("GPU", 0.0)
    if requested is None:
        return 1.0 if most else 0.0
    if requested > most:
        allowed = f"at most {most:g}, which is what the cluster has"
        raise InvalidValue("gpus_per_worker", requested, allowed)
    return requested
