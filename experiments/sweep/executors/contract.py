"""What a sweep needs of its executors, and what all of them do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing

from experiments.grid import models
from experiments.sweep.decoder import DecodeJob, Event, JobEnd, StepCount, WorkerPlace, decode

#: Called with a worker's number and an event of its job.
Report = Callable[[int, Event], None]


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
