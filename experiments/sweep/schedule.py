"""What is left to decode, in which order, cut into jobs that keep every worker busy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

#: A run that was alone in a worker that died is tried again so many times in all.
TRIES = 2


class BatchGroup(NamedTuple):
    """What can be decoded together: a configuration, and the detector that acts in it (0: none)."""

    config: int
    acting: int = 0


@dataclass(frozen=True)
class Task(Generic[T]):
    """One run to decode."""

    key: str
    group: BatchGroup
    what: T
    expected: float
    prompt: int = 0


class Schedule(Generic[T]):
    """Tasks that are ready, at work, or waiting for another to end.

    First comes what others wait for, then the group with most work left. A worker is given a fair
    share of all work there is, its longest tasks first: a whole group as long as there are plenty.
    """

    def __init__(self, workers: int, least: int = 1) -> None:
        self._workers, self._least = workers, least
        self._ready: dict[BatchGroup, dict[str, Task[T]]] = {}
        self._again: deque[list[Task[T]]] = deque()  # of workers that were lost
        self._taken: dict[str, Task[T]] = {}
        self._waiting: dict[str, list[tuple[BatchGroup, T]]] = {}  # by what they wait for
        self._alone: Counter[str] = Counter()  # how often a job was this task alone
        self._open: Counter[BatchGroup] = Counter()  # what has not ended, by group

    def add(self, task: Task[T]) -> None:
        """One more that can begin; nothing where it is there already, wanted by others too."""
        if task.key in self._taken or task.key in self._ready.get(task.group, {}):
            return
        self._ready.setdefault(task.group, {})[task.key] = task
        self._open[task.group] += 1

    def hold(self, until: str, group: BatchGroup, what: T) -> None:
        """Something that may be needed, once the task of that key has ended."""
        self._waiting.setdefault(until, []).append((group, what))
        self._open[group] += 1

    @property
    def left(self) -> bool:
        """Whether anything has not ended."""
        return any(self._open.values())

    def jobs(self) -> int:
        """How many workers could begin now."""
        parts = (max(1, len(tasks) // self._least) for tasks in self._ready.values())
        return len(self._again) + sum(parts)

    def take(self) -> list[Task[T]]:
        """The next job, longest first; nothing where all that is left is at work or waits."""
        if self._again:
            job = self._again.popleft()
        elif self._ready:
            group = min(self._ready, key=self._rank)
            job = self._share(group)
            for task in job:
                del self._ready[group][task.key]
            if not self._ready[group]:
                del self._ready[group]
        else:
            return []
        self._taken.update((task.key, task) for task in job)
        if len(job) == 1:
            self._alone[job[0].key] += 1
        return job

    def _rank(self, group: BatchGroup) -> tuple[bool, float, BatchGroup]:
        tasks = self._ready[group]
        awaited = any(key in self._waiting for key in tasks)
        return not awaited, -_work(tasks.values()), group

    def _share(self, group: BatchGroup) -> list[Task[T]]:
        """Every n-th of a group's tasks, so that n workers have as much as there is for each."""
        tasks = sorted(self._ready[group].values(), key=lambda task: (-task.expected, -task.prompt))
        left = sum(_work(some.values()) for some in self._ready.values())
        fair = (left + _work(self._taken.values())) / self._workers
        parts = round(_work(tasks) / fair) if fair else 1
        return tasks[:: max(1, min(parts, len(tasks) // self._least))]

    def done(self, task: Task[T]) -> list[tuple[BatchGroup, T]]:
        """A task has ended, well or not; what waited for it."""
        del self._taken[task.key]
        released = self._waiting.pop(task.key, [])
        self._open.subtract([task.group, *(group for group, _ in released)])
        return released

    def lost(self, tasks: Sequence[Task[T]]) -> list[Task[T]]:
        """A worker died with these; those that are not to be tried again, still taken."""
        if len(tasks) == 1 and self._alone[tasks[0].key] >= TRIES:
            return list(tasks)
        middle = (len(tasks) + 1) // 2
        for half in (tasks[:middle], tasks[middle:]):
            for task in half:
                del self._taken[task.key]
            if half:
                self._again.append(list(half))
        return []

    def finished(self, group: BatchGroup) -> bool:
        """Whether nothing of a group is left."""
        return not self._open[group]


def _work(tasks: Iterable[Task[T]]) -> float:
    return sum(task.expected for task in tasks)
