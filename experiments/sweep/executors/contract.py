"""What a sweep needs of its executors, and what all of them do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from attention.errors import InvalidValue
from experiments.grid import models
from experiments.sweep.decoder import (
    ELSEWHERE,
    DecodeJob,
    Event,
    JobEnd,
    Remark,
    StepCount,
    WorkerLoss,
    WorkerPlace,
    decode,
)

#: Called with a worker's number and an event of its job.
Report = Callable[[int, Event], None]

#: What comes from a worker elsewhere: where its model is, why it has none, or an event of its job.
Answer = WorkerPlace | InvalidValue | Event

#: Starts that fail one after the other before no more are tried.
STARTS = 2


class Executor(ABC):
    """Workers with one model each, known by numbers from 0; `place` is for a manifest."""

    def __init__(self, place: WorkerPlace | None = None) -> None:
        self.place: WorkerPlace = place or {}

    def hire(self, jobs: int) -> None:  # noqa: B027 - where the worker is there already
        """Start as many workers as there are jobs for, at most as many as the sweep has."""

    @abstractmethod
    def free(self) -> Sequence[int]:
        """Workers that are ready and have no job."""

    @abstractmethod
    def submit(self, worker: int, job: DecodeJob) -> None:
        """Give a free worker a job."""

    @abstractmethod
    def wait(self, report: Report) -> None:
        """Wait until something happens, and report it."""


class Here(Executor):
    """One worker, which is this process: it keeps a job until it is waited for."""

    _job: DecodeJob | None = None

    def free(self) -> Sequence[int]:
        """Worker 0, if it has no job."""
        return [0] if self._job is None else []

    def submit(self, worker: int, job: DecodeJob) -> None:
        """Keep the job for `wait`."""
        del worker
        self._job = job

    def taken(self) -> DecodeJob:
        """The job, which the worker gives up."""
        job, self._job = self._job, None
        assert job is not None
        return job


class InProcess(Here):
    """Decodes here, a job at a time."""

    def __init__(self, loaded: models.LoadedModel, place: WorkerPlace | None = None) -> None:
        super().__init__(place)
        self._loaded = loaded

    def wait(self, report: Report) -> None:
        """Decode the job."""
        job = self.taken()
        with closing(decode(self._loaded, job, lambda n: report(0, StepCount(n)))) as events:
            for event in events:
                report(0, event)
        report(0, JobEnd())


@dataclass
class Worker:
    """A worker elsewhere: whether its model is loaded, and whether it has a job."""

    ready: bool = field(default=False, kw_only=True)
    busy: bool = field(default=False, kw_only=True)


W = TypeVar("W", bound=Worker)


class Workers(Executor, Generic[W]):
    """Workers elsewhere, which are started when there is a job for them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._workers: dict[int, W] = {}
        self._failed_starts = 0

    @abstractmethod
    def _started(self, at: int) -> W:
        """A worker with this number, which begins to load its model."""

    def hire(self, jobs: int) -> None:
        """Start workers while there are more jobs than workers without one."""
        if self._workers and self._failed_starts >= STARTS:
            return
        spare = sum(not worker.busy for worker in self._workers.values())
        vacant = [at for at in range(self._count) if at not in self._workers]
        for at in vacant[: max(0, jobs - spare)]:
            self._workers[at] = self._started(at)

    def free(self) -> Sequence[int]:
        """Workers that are ready and have no job."""
        return [at for at, worker in self._workers.items() if worker.ready and not worker.busy]

    def _on_answer(self, at: int, answer: Answer, report: Report) -> None:
        """A worker has loaded its model, cannot load it, or reports an event of its job."""
        if isinstance(answer, InvalidValue):
            raise answer
        if isinstance(answer, dict):
            self._failed_starts, self._workers[at].ready = 0, True
            if not self.place or self.place.get("compile") == ELSEWHERE:
                self.place = answer
            return
        self._workers[at].busy = not isinstance(answer, JobEnd)
        report(at, answer)

    def _remove(self, at: int, report: Report, reason: str, startable: str) -> None:
        """Take a worker that died off the list."""
        worker = self._workers.pop(at)
        if worker.ready:
            if worker.busy:
                report(at, WorkerLoss(reason))
            return
        self._failed_starts += 1
        left = len(self._workers)
        if self._failed_starts >= STARTS and not left:
            raise InvalidValue("workers", self._count, startable)
        if self._failed_starts >= STARTS:
            report(at, Remark(f"a worker could not start ({reason}); {left} go on without"))
