"""One worker: this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from experiments.grid import models
from experiments.sweep.decoder import Ended, Job, Stepped, decode
from experiments.sweep.executors.contract import Tell


class InProcess:
    """Decodes here, a job at a time.

    Args:
        loaded: the model.
    """

    found: Mapping[str, Any] = {}

    def __init__(self, loaded: models.Loaded) -> None:
        self._loaded = loaded
        self._job: Job | None = None

    def hire(self, jobs: int) -> None:
        """It is there already."""

    def free(self) -> Sequence[int]:
        """Worker 0, if it has no job."""
        return [0] if self._job is None else []

    def submit(self, worker: int, job: Job) -> None:
        """Keep the job for `wait`."""
        del worker
        self._job = job

    def wait(self, tell: Tell) -> None:
        """Decode the job."""
        job, self._job = self._job, None
        assert job is not None
        with closing(decode(self._loaded, job, lambda n: tell(0, Stepped(n)))) as events:
            for event in events:
                tell(0, event)
        tell(0, Ended())
