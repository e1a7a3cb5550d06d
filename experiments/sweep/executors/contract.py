"""What a sweep needs of those who decode for it, and what all of them do alike."""

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
    Remark,
    StepCount,
    WorkerLoss,
    WorkerPlace,
    decode,
)
from experiments.sweep.missing_runs import Preparation

#: Called with a worker's number and what it has to say.
Tell = Callable[[int, Event], None]

#: Starts that fail one after the other before no more are tried.
STARTS = 2


class Executor(Protocol):
    """Workers with one model each, known by numbers from 0.

    Attributes:
        place: what a manifest says of where they are; empty until one is ready.
    """

    place: WorkerPlace

    def hire(self, jobs: int) -> None:
        """Let there be as many workers as there are jobs for, at most as many as were asked for."""

    def free(self) -> Sequence[int]:
        """Workers that are ready and have no job."""

    def submit(self, worker: int, job: DecodeJob) -> None:
        """Give a free worker a job."""

    def wait(self, tell: Tell) -> None:
        """Wait until something happens, and tell of it.

        A job ends with `JobEnd`, or with `WorkerLoss` where its worker died; what it had said
        before has been told by then.

        Raises:
            InvalidValue: a model that does not load, or no worker can start.
        """


Open = Callable[[Preparation, models.ModelSource], AbstractContextManager[Executor]]


class Here:
    """One worker, which is this process: it keeps a job until it is waited for.

    Args:
        place: more for the manifest.
    """

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
        """The job, which is kept no longer."""
        job, self._job = self._job, None
        assert job is not None
        return job


class InProcess(Here):
    """Decodes here, a job at a time.

    Args:
        loaded: the model.
        place: more for the manifest.
    """

    def __init__(self, loaded: models.LoadedModel, place: WorkerPlace | None = None) -> None:
        super().__init__(place)
        self._loaded = loaded

    def wait(self, tell: Tell) -> None:
        """Decode the job."""
        job = self.taken()
        with closing(decode(self._loaded, job, lambda n: tell(0, StepCount(n)))) as events:
            for event in events:
                tell(0, event)
        tell(0, JobEnd())


class Worker(Protocol):
    """A worker that is elsewhere."""

    @property
    def ready(self) -> bool:
        """Whether its model is loaded."""

    @property
    def busy(self) -> bool:
        """Whether it has a job."""


W = TypeVar("W", bound=Worker)


class Crew(ABC, Generic[W]):
    """Workers that are started when there is something to do for them.

    Those that die are replaced as long as there is; what they were at is told as lost.

    Args:
        count: of workers there may be.
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

    def _begun(self, place: WorkerPlace) -> None:
        """A worker has loaded its model."""
        self._failed_starts = 0
        if not self.place or self.place.get("compile") == ELSEWHERE:
            self.place = place

    def _bury(self, at: int, tell: Tell, reason: str, startable: str) -> None:
        """A worker has died.

        Args:
            at: its number.
            tell: told of it.
            reason: how it died.
            startable: what a user is asked for where none can start.
        """
        worker = self._workers.pop(at)
        if worker.ready:
            if worker.busy:
                tell(at, WorkerLoss(reason))
            return
        self._failed_starts += 1
        if self._failed_starts < STARTS:
            return
        if not self._workers:
            raise InvalidValue("workers", self._count, startable)
        tell(at, Remark(f"a worker could not start ({reason}); {len(self._workers)} go on without"))
