"""What a sweep needs of those who decode for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from experiments.grid import models
from experiments.sweep.backlog import Prepared
from experiments.sweep.decoder import Event, Job

#: Called with a worker's number and what it has to say.
Tell = Callable[[int, Event], None]


class Executor(Protocol):
    """Workers with one model each, known by numbers from 0.

    Attributes:
        found: what a manifest says of where they are; empty until one is ready.
    """

    found: Mapping[str, Any]

    def hire(self, jobs: int) -> None:
        """Let there be as many workers as there are jobs for, at most as many as were asked for."""

    def free(self) -> Sequence[int]:
        """Workers that are ready and have no job."""

    def submit(self, worker: int, job: Job) -> None:
        """Give a free worker a job."""

    def wait(self, tell: Tell) -> None:
        """Wait until something happens, and tell of it.

        A job ends with `Ended`, or with `Lost` where its worker died; what it had said before has
        been told by then.

        Raises:
            InvalidValue: a model that does not load, or no worker can start.
        """


Open = Callable[[Prepared, models.Source], AbstractContextManager[Executor]]
