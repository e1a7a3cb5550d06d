"""What a sweep needs of its executors, and what all of them do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import Generic, Protocol, TypeVar

from attention.errors import InvalidValue
from experiments.grid import models
from experiments.sweep.decoder import (
    ELSEWHERE,
    DecodeJob,
    Event,
    JobEnd,
    Prepared,
    Remark,
    StepCount,
    WorkerLoss,
    WorkerPlace,
    decode,
)

#: Called with a worker's number and an event of its job.
Report = Callable[[int, Event], None]

#: Starts that fail one after the other before no more are tried.
STARTS = 2


class Executor(Protocol):
    """Workers with one model each, known by numbers from 0."""

    place: WorkerPlace

    def hire(self, jobs: int) -> None:
        """Start as many workers as there are jobs for, at most as many as the sweep has."""

    def free(self) -> Sequence[int]:
        """Workers that are ready and have no job."""

    def submit(self, worker: int, job: DecodeJob) -> None:
        """Give a free worker a job."""

    def wait(self, report: Report) -> None:
        """Wait until something happens, and report it.

        A job ends with `JobEnd`, or with `WorkerLoss` where its worker died; all its earlier
        events were reported by then.

        Raises:
            InvalidValue: a model that does not load, or no worker can start.
        """


Open = Callable[[Prepared, models.ModelSource, float], AbstractContextManager[Executor]]


class Here:
    """One worker, which is this process: it keeps a job until it is waited for."""

    def __init__(self, place: WorkerPlace | None = None) -> None:
        self.place: WorkerPlace = place or {}
        self._job: DecodeJob | None = None

    def hire(self, jobs: int) -> None:
        """It is there already."""

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


class Worker(Protocol):
    """A worker elsewhere."""

    @property
    def ready(self) -> bool:
        """Whether its model is loaded."""

    @property
    def busy(self) -> bool:
        """Whether it has a job."""


W = TypeVar("W", bound=Worker)


class Workers(ABC, Generic[W]):
    """Workers elsewhere, which are started when there is a job for them.

    A worker that dies is replaced as long as there are jobs; its job is reported as lost.
    """

    def __init__(self, count: int) -> None:
        self.place: WorkerPlace = {}
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

    def _on_ready(self, place: WorkerPlace) -> None:
        """A worker has loaded its model."""
        self._failed_starts = 0
        if not self.place or self.place.get("compile") == ELSEWHERE:
            self.place = place

    def _remove(self, at: int, report: Report, reason: str, startable: str) -> None:
        """Take a worker that died off the list."""
        worker = self._workers.pop(at)
        if worker.ready:
            if worker.busy:
                report(at, WorkerLoss(reason))
            return
        self._failed_starts += 1
        if self._failed_starts < STARTS:
            return
        if not self._workers:
            raise InvalidValue("workers", self._count, startable)
        left = len(self._workers)
        report(at, Remark(f"a worker could not start ({reason}); {left} go on without"))
