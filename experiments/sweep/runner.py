"""The decoding part of a sweep: jobs go to workers as these are free, outcomes to the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from experiments.grid import models
from experiments.grid.identity import Configuration
from experiments.grid.plan import Run
from experiments.store.samples import load as reading
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep.decoder import (
    IN_VAIN,
    Event,
    JobEnd,
    Remark,
    RowFailure,
    RowTrace,
    StepCount,
    WorkerLoss,
    WorkerPlace,
)
from experiments.sweep.executors import Executor, Open
from experiments.sweep.missing_runs import MissingRuns, PendingRun, Preparation
from experiments.sweep.result_writer import Counts, Progress, ResultWriter
from experiments.sweep.schedule import BatchGroup, Schedule, Task


class Runner:
    """Decodes what the store lacks, one model after the other.

    Args:
        prepared: what to decode.
        store: where traces go.
        progress: told how it goes.
        counts: raised as it goes.
        retry_failed: decode again what failed before.
        sweep: its id, which every record keeps.
        open_executor: of a model, when there is something to decode with it.
    """

    def __init__(
        self,
        prepared: Preparation,
        store: Store,
        progress: Progress,
        counts: Counts,
        retry_failed: bool,
        sweep: str,
        open_executor: Open,
    ) -> None:
        self.prepared, self.plan, self.open_executor = prepared, prepared.plan, open_executor
        self.store, self.progress, self.counts = store, progress, counts
        self.study = Study(store, prepared.plan, prepared.config, scorers=prepared.scorers)
        self.backlog = MissingRuns(prepared, self.study, retry_failed)
        workers = prepared.config.workers
        self.keeper = ResultWriter(store, progress, counts, sweep, workers, self.backlog)
        self.place: WorkerPlace = {}  # of the workers, for the manifest

    def run(self) -> None:
        """Decode everything that is left."""
        self.counts.stored_before = sum(not self.backlog.pending(run) for run in self.study.runs())
        left = self.backlog.weight_left()
        self.progress.plan(len(self.plan), self.counts.stored_before, left)
        for source in self.prepared.sources:
            self._decode_model(source)

    def _decode_model(self, source: models.ModelSource) -> None:
        """One model's runs; when it returns, nothing here holds the model any more."""
        work = _Work(
            self,
            [
                configuration
                for configuration in self.plan.configurations
                if configuration.model == source.name
            ],
        )
        if work.schedule.left:
            prepared = replace(self.prepared, steps=self.backlog.steps_left(source.name))
            with self.open_executor(prepared, source) as executor:
                work.do(executor)
                self.place |= executor.place
            told = executor.place.get("compile", "")
            if told.startswith(IN_VAIN):
                self.progress.note(f"steps of {source.name} were {told}")


class _Work:
    """The runs of one model on their way through the schedule.

    Args:
        runner: whose they are.
        cells: of the model.
    """

    def __init__(self, runner: Runner, configurations: Sequence[Configuration]) -> None:
        self.study, self.backlog, self.keeper = runner.study, runner.backlog, runner.keeper
        self.progress, self.detectors = runner.progress, runner.prepared.detectors
        config = runner.prepared.config
        self.schedule = Schedule[PendingRun](config.workers, max(1, config.batch_size // 4))
        self.jobs: dict[int, dict[int, Task[PendingRun]]] = {}  # by worker, then place in the job
        self.unread: list[Configuration] = []  # complete, their samples not yet kept for the report
        self.acting_left = 0.0  # tokens expected of runs with detectors that act
        self.ended: set[str] = set()  # full attention's runs that ended here, well or not
        self.configs = _configs(configurations)
        for number in range(len(self.configs)):
            self._plan(number)
        for number in range(len(self.configs)):
            self._settle(BatchGroup(number))

    def _plan(self, number: int) -> None:
        """Put a configuration's runs into the schedule; sparse ones wait for full attention."""
        for run in self._runs(number):
            self._begin_or_wait(BatchGroup(number), PendingRun(run))

    def _begin_or_wait(self, group: BatchGroup, pending: PendingRun) -> None:
        """The length of a sparse run follows from all of full attention's on the problem."""
        run = pending.run
        for full in () if run.configuration.is_full else self.study.plan.fulls(run):
            if full.id not in self.ended and self.backlog.pending(full):
                self.schedule.hold(full.id, group, pending)
                return
        if self.backlog.pending(run):
            self._add(group, pending)

    def _runs(self, number: int) -> Iterator[Run]:
        for configuration in self.configs[number]:
            yield from self.study.plan.runs(configuration)

    def _add(self, group: BatchGroup, pending: PendingRun) -> Task[PendingRun]:
        expected, prompt = self.backlog.weight(pending.run), len(self.backlog.prompt(pending.run))
        task = Task(self.backlog.key(pending), group, pending, expected, prompt)
        self.schedule.add(task)
        return task

    # ------------------------------------------------------------ at work

    def do(self, executor: Executor) -> None:
        """Keep the workers busy until nothing is left."""
        while self.schedule.left or self.jobs:
            executor.hire(self.schedule.jobs())
            for worker in executor.free():
                if not (tasks := self.schedule.take()):
                    break
                self._begin(executor, worker, tasks)
            self._read()  # while they work
            executor.wait(self._hear)
        self._read()

    def _begin(self, executor: Executor, worker: int, tasks: Sequence[Task[PendingRun]]) -> None:
        self.jobs[worker] = dict(enumerate(tasks))
        pending = [task.what for task in tasks]
        datasets = dict.fromkeys(one.run.configuration.dataset for one in pending)
        self.progress.configuration(pending[0].run.configuration, tuple(datasets))
        executor.submit(worker, self.backlog.job(pending))

    def _hear(self, worker: int, event: Event) -> None:
        """What a worker has to say."""
        match event:
            case StepCount(tokens):
                self.progress.step(tokens)
            case Remark(text):
                self.progress.note(text)
            case RowTrace(index):
                task = self.jobs[worker].pop(index)
                self.keeper.keep(task, event)
                self._ended(task)
            case RowFailure(index):
                task = self.jobs[worker].pop(index)
                self.keeper.keep_failure(task, event)
                self._ended(task)
            case JobEnd():
                del self.jobs[worker]
                self.keeper.store.sync()
            case WorkerLoss(reason):
                self._lost(list(self.jobs.pop(worker).values()), reason)

    def _lost(self, tasks: list[Task[PendingRun]], reason: str) -> None:
        """A worker died: what it had is tried again elsewhere."""
        self.keeper.store.sync()
        given_up = self.schedule.lost(tasks)
        for task in given_up:
            said = f"its worker was lost twice with nothing else at work ({reason})"
            self.keeper.keep_failure(task, RowFailure(0, "error", said, 1))
            self._ended(task)
        if len(tasks) > len(given_up):
            told = tasks[0].what.run.configuration.name
            rows = f"{len(tasks)} unfinished row{'' if len(tasks) == 1 else 's'}"
            self.progress.note(f"{told}: a worker was lost ({reason}); {rows} are tried again")

    # ------------------------------------------------------------ what follows

    def _ended(self, task: Task[PendingRun]) -> None:
        """A run is stored: what waited for it can begin."""
        if task.group.acting:
            self.acting_left -= task.expected
        plain_full = task.what.run.configuration.is_full and not task.group.acting
        if plain_full:
            self.ended.add(task.key)
        released = self.schedule.done(task)
        for group, pending in released:
            self._begin_or_wait(group, pending)
        if plain_full and self.schedule.finished(task.group):
            # Now the lengths are known that everything else depends on.
            self.progress.weigh(self.backlog.weight_left() + self.acting_left)
        for group in dict.fromkeys([task.group, *(group for group, _ in released)]):
            self._settle(group)

    def _settle(self, group: BatchGroup) -> None:
        """After the last plain run of a configuration come those with detectors that act."""
        number = group.config
        if not self.schedule.finished(group):
            return
        if not group.acting:
            acted = [
                one
                for configuration in self.configs[number]
                for one in self.backlog.acted(configuration)
            ]
            for at, detector in enumerate(self.backlog.acting, start=1):
                mine = [one for one in acted if one.detector == detector]
                tasks = [self._add(BatchGroup(number, at), one) for one in mine]
                if weight := sum(task.expected for task in tasks):
                    self.progress.more(len(mine), weight)
                    self.acting_left += weight
        groups = [BatchGroup(number, at) for at in range(len(self.backlog.acting) + 1)]
        if all(self.schedule.finished(one) for one in groups):
            self.unread += self.configs[number]

    def _read(self) -> None:
        """Keep samples for the report."""
        while self.unread:
            configuration = self.unread.pop()
            reading.read(self.study, self.detectors, configurations=[configuration])


def _configs(configurations: Sequence[Configuration]) -> list[list[Configuration]]:
    """Cells that differ in their data set alone, full attention first."""
    found: dict[str, list[Configuration]] = {}
    for configuration in sorted(
        configurations, key=lambda configuration: not configuration.is_full
    ):
        method = [
            dict(configuration.backend),
            [dict(p) for p in configuration.penalties],
            dict(configuration.sampling),
        ]
        key = json.dumps(method, sort_keys=True)
        found.setdefault(key, []).append(configuration)
    return list(found.values())
