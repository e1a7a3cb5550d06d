"""The decoding part of a sweep: what the store lacks, as jobs to workers, and back to the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import lil
from experiments.grid import models
from experiments.grid.data.sets import stream_name
from experiments.grid.identity import OWN_RUNTIME, Configuration
from experiments.grid.plan import Run
from experiments.grid.sources import code
from experiments.store import manifest
from experiments.store.samples.replay import (
    Firing,
    acted_record,
    continues_after_verdict,
    stored_verdict,
    verdict_on,
)
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import decoder
from experiments.sweep.decoder import DecodeJob, Event, Prepared, RowFailure, RowTrace, WorkerPlace
from experiments.sweep.executors import Executor, open_executor
from experiments.sweep.schedule import BatchGroup, Schedule, Task

if TYPE_CHECKING:
    from lil.trace import Signal


class PendingRun(NamedTuple):
    """A run to decode, and the verdict that a detector acts upon in it; None where none acts."""

    run: Run
    fired: Firing | None = None

    @property
    def detector(self) -> lil.Detector | None:
        """The detector that acts."""
        return None if self.fired is None else self.fired.detector


class MissingRuns:
    """What is left of a plan."""

    def __init__(self, study: Study, retry_failed: bool) -> None:
        assert study.experiment is not None
        self.study, self.experiment, self.config = study, study.experiment, study.config
        self.retry_failed = retry_failed
        self.readers = tuple(d for d in self.experiment.detectors if d.signals)
        self.acting = tuple(d for d in self.experiment.detectors if continues_after_verdict(d))
        self._signals = [name for reader in self.readers for name in reader.signals]
        self.notes_code = code(*self.readers)
        self._codes: dict[str, dict[str, str]] = {}  # by configuration

    def pending(self, run: Run) -> bool:
        """Whether the store lacks a run, or has less of it than is needed."""
        record = self.study.store.get(run.id)
        if record is None or not record.covers_cap(self.study.cap(run)) or self.of_other_code(run):
            return True
        if not record.has(self._signals):
            return True
        return record.failed and self.retry_failed

    def of_other_code(self, run: Run) -> dict[str, str]:
        """Where other code than today's decoded a stored run: today's digests by import path."""
        record = self.study.store.get(run.id)
        if record is None:
            return {}
        differing = dict(self.code(run.configuration).items() - record.code.items())
        if record.failed or not record.has(self._signals):
            return differing  # it has no notes that could be read
        return differing | dict(self.notes_code.items() - record.notes_code.items())

    def code(self, configuration: Configuration) -> dict[str, str]:
        """Digests of a configuration's methods and penalties that do not ship."""
        if configuration.digest not in self._codes:
            made_by = self.study.backend(configuration), *self.study.penalties(configuration)
            self._codes[configuration.digest] = code(*made_by)
        return self._codes[configuration.digest]

    def acted(self, configuration: Configuration) -> Iterator[PendingRun]:
        """Runs in which a detector that acts fires, and that were not decoded with it."""
        acting = [d for d in self.acting if self.study.supports(d, configuration)]
        for run in self.study.plan.runs(configuration) if acting else ():
            plain, cap = self.study.store.get(run.id), self.study.cap(run)
            if plain is None or plain.failed or self.pending(run):
                continue
            trace = plain.trace()
            for detector in acting:
                verdict = verdict_on(trace, detector, cap)
                if verdict is None:
                    continue
                fired = Firing(run, plain, cap, detector, verdict)
                record = acted_record(self.study.store, fired)
                if record is None or (record.failed and self.retry_failed):
                    yield PendingRun(run, fired)

    def key(self, pending: PendingRun) -> str:
        """The id that its record will have."""
        return pending.run.id if pending.fired is None else pending.fired.id

    def weight(self, run: Run) -> float:
        """Expected tokens: full attention's length; until that is known, a quarter of the cap."""
        tokens = self.study.full_tokens(run)
        return self.study.full_cap(run) / 4 if tokens is None else float(tokens)

    def weight_left(self, model: str | None = None) -> float:
        """Expected tokens of all that is left, or of one model's; without acting detectors."""
        return sum(
            self.weight(run)
            for run in self.study.runs()
            if model in (None, run.configuration.model) and self.pending(run)
        )

    def prompt(self, run: Run) -> Sequence[int]:
        """Token ids of its prompt."""
        configuration = run.configuration
        return self.experiment.prompts[configuration.model, configuration.dataset, run.item_id]

    def job(self, pending: Sequence[PendingRun]) -> DecodeJob:
        """A job of runs of one configuration and one detector."""
        configuration, detector = pending[0].run.configuration, pending[0].detector
        return DecodeJob(
            name=configuration.name,
            requests=tuple(self._request(run.run, run.detector) for run in pending),
            backend=self.study.backend(configuration),
            penalties=self.study.penalties(configuration),
            # Where no detector acts, those that read hidden states take notes.
            detectors=() if detector is None else (detector,),
            probes=self.readers if detector is None else (),
            # A greedy run's identity has none of these, which its reheated tokens depend on.
            options=self.config.decode_options()
            | {"top_k": None, "top_p": 1.0, "seed": 0, **configuration.sampling},
        )

    def _request(self, run: Run, detector: lil.Detector | None) -> lil.Request:
        prompt_ids, cap = self.prompt(run), self.study.cap(run)
        forced, signals = self._known_prefix(run, len(prompt_ids), cap)
        if detector is not None:  # it has to see every token decoded
            forced, signals = (), {}
        name = stream_name(run.configuration.dataset, run.item_id)
        return lil.Request(prompt_ids, cap, name, run.sample_index, forced, signals)

    def _known_prefix(
        self, run: Run, prompt: int, cap: int
    ) -> tuple[tuple[int, ...], Mapping[str, Signal]]:
        """Tokens of full attention that this backend would give as well, and their signals."""
        configuration = run.configuration
        # Neither another runtime takes a known beginning, nor do questions, which read beyond it.
        foreign = configuration.runtime != OWN_RUNTIME or any(x.cues for x in self.readers)
        if configuration.is_full or configuration.penalties or self.config.temperature or foreign:
            return (), {}
        full = self.study.full(run)
        room = self.study.backend(configuration).exact_until - prompt
        if full is None or full.failed or room <= 0:
            return (), {}
        trace = full.trace()
        return trace.new_ids[: int(min(room, trace.tokens - 1, cap - 1))], trace.signals


class Progress:
    """Is informed of a sweep's events; this one does nothing. Weights are expected tokens."""

    def plan(self, runs: int, stored: int, weight: float) -> None:
        """How many runs there are, how many the store has, and the work left."""

    def configuration(self, configuration: Configuration, datasets: Sequence[str] = ()) -> None:
        """One configuration begins, with problems of these data sets; its own if none."""

    def step(self, tokens: int) -> None:
        """So many tokens were decoded since the last call."""

    def run_done(self, weight: float) -> None:
        """One run ended."""

    def weigh(self, weight: float) -> None:
        """The work left is now known better."""

    def more(self, runs: int, weight: float) -> None:
        """So many more runs have turned out to be needed."""

    def note(self, text: str) -> None:
        """Something a reader should know."""


@dataclass
class Counts:
    """What a sweep did; tokens are generated ones."""

    runs: int = 0
    stored_before: int = 0
    decoded: int = 0
    failed: int = 0
    decoded_tokens: int = 0
    reused_tokens: int = 0
    acted: int = 0


@dataclass
class ResultWriter:
    """Stores each run as it ends; the store is this process's alone to write."""

    store: Store
    progress: Progress
    counts: Counts
    sweep: str
    missing: MissingRuns

    @cached_property
    def _runtime(self) -> str:
        return manifest.runtime(self.missing.config.runtime)

    def write(self, task: Task[PendingRun], event: RowTrace) -> None:
        """A run that was decoded."""
        trace = event.trace
        outcome = {
            "status": "capped" if trace.finish == "length" else "ok",
            "finish": trace.finish,
            "tokens": trace.tokens,
            "at_positions": trace.at_positions,
            "signals": sorted(trace.signals),
            "batch_size": event.rows,
        }
        self._append(task, outcome, trace)
        self.counts.decoded += 1
        self.counts.acted += task.what.detector is not None
        self.counts.decoded_tokens += trace.decoded_tokens - trace.reused_tokens
        self.counts.reused_tokens += trace.reused_tokens

    def write_failure(self, task: Task[PendingRun], event: RowFailure) -> None:
        """A run that cannot be decoded."""
        outcome = {"status": event.status, "message": event.message, "batch_size": event.rows}
        self._append(task, outcome, None)
        self.counts.failed += 1
        run = task.what.run
        where = f"{run.configuration.name}, {run.configuration.dataset} {run.item_id}"
        self.progress.note(f"{where}: {event.message}")

    def _append(
        self, task: Task[PendingRun], outcome: Mapping[str, Any], trace: lil.Trace | None
    ) -> None:
        run, fired = task.what
        own_code = self.missing.code(run.configuration)
        made_by: dict[str, object] = {"code": own_code, "notes_code": self.missing.notes_code}
        if fired is not None:
            own_code = own_code | code(fired.detector)
            made_by = {"code": own_code, "verdict": stored_verdict(fired.verdict)}
        meta = {
            "cell": run.configuration.to_dict(),
            "item_id": run.item_id,
            "prompt": run.problem.prompt,
            "sample_index": run.sample_index,
            "status": None,
            "finish": None,
            "tokens": None,
            "message": None,
            "detector": None if fired is None else fired.detector.identity(),
            **{key: value for key, value in made_by.items() if value},
            "sweep": self.sweep,
            "workers": self.missing.config.workers,
            "runtime": self._runtime,
            **outcome,
        }
        self.store.append(task.key, meta, None if trace is None else trace.to_dict())
        self.progress.run_done(task.expected)


@dataclass
class Runner:
    """Decodes what the store lacks, one model after the other."""

    prepared: Prepared
    missing: MissingRuns
    writer: ResultWriter
    place: WorkerPlace = field(default_factory=WorkerPlace)  # of the workers, for the manifest

    def run(self) -> None:
        """Decode everything that is left."""
        experiment, writer = self.prepared.experiment, self.writer
        pending = map(self.missing.pending, self.missing.study.runs())
        writer.counts.stored_before = sum(not is_pending for is_pending in pending)
        left = self.missing.weight_left()
        writer.progress.plan(len(experiment.plan), writer.counts.stored_before, left)
        for source in experiment.sources.values():
            self._decode_model(source)

    def _decode_model(self, source: models.ModelSource) -> None:
        """One model's runs; when it returns, nothing here holds the model any more."""
        work = _ModelRuns(self.missing, self.writer, source.name)
        if not work.schedule.left:
            return
        # Decode steps in full batches: what it is worth to compile the step.
        steps = self.missing.weight_left(source.name) / self.missing.config.rows
        with open_executor(self.prepared, source, steps) as executor:
            work.decode(executor)
            self.place |= executor.place
        compiled = executor.place.get("compile", "")
        if compiled.startswith(decoder.NOT_COMPILED):
            self.writer.progress.note(f"steps of {source.name} were {compiled}")


class _ModelRuns:
    """The runs of one model on their way through the schedule."""

    def __init__(self, missing: MissingRuns, writer: ResultWriter, model: str) -> None:
        self.study, self.missing, self.writer = missing.study, missing, writer
        self.progress, self.detectors = writer.progress, missing.experiment.detectors
        config, plan = missing.config, missing.experiment.plan
        self.schedule = Schedule[PendingRun](config.workers, max(1, config.rows // 4))
        self.jobs: dict[int, dict[int, Task[PendingRun]]] = {}  # by worker, then place in the job
        self.unread: list[Configuration] = []  # complete, but their samples are not in the cache
        self.acting_left = 0.0  # expected tokens of runs with detectors that act
        self.ended: set[str] = set()  # full attention's runs that ended here, well or not
        self.batches = _batches([c for c in plan.configurations if c.model == model])
        for number, batch in enumerate(self.batches):
            for configuration in batch:
                for run in plan.runs(configuration):
                    self._add_or_hold(BatchGroup(number), PendingRun(run))
        for number in range(len(self.batches)):
            self._settle(BatchGroup(number))

    def _add_or_hold(self, group: BatchGroup, pending: PendingRun) -> None:
        """Add a run; a sparse one's cap follows from all of full attention's on the problem."""
        run = pending.run
        for full in () if run.configuration.is_full else self.study.plan.fulls(run):
            if full.id not in self.ended and self.missing.pending(full):
                self.schedule.hold(full.id, group, pending)
                return
        if self.missing.pending(run):
            self._add(group, pending)

    def _add(self, group: BatchGroup, pending: PendingRun) -> Task[PendingRun]:
        expected, prompt = self.missing.weight(pending.run), len(self.missing.prompt(pending.run))
        task = Task(self.missing.key(pending), group, pending, expected, prompt)
        self.schedule.add(task)
        return task

    def decode(self, executor: Executor) -> None:
        """Keep the workers busy until nothing is left."""
        while self.schedule.left or self.jobs:
            executor.hire(self.schedule.jobs())
            for worker in executor.free():
                if not (tasks := self.schedule.take()):
                    break
                self._submit(executor, worker, tasks)
            self._read_samples()  # while the workers decode
            executor.wait(self._on_event)
        self._read_samples()

    def _submit(self, executor: Executor, worker: int, tasks: Sequence[Task[PendingRun]]) -> None:
        self.jobs[worker] = dict(enumerate(tasks))
        pending = [task.what for task in tasks]
        datasets = dict.fromkeys(run.run.configuration.dataset for run in pending)
        self.progress.configuration(pending[0].run.configuration, tuple(datasets))
        executor.submit(worker, self.missing.job(pending))

    def _on_event(self, worker: int, event: Event) -> None:
        match event:
            case decoder.StepCount(tokens):
                self.progress.step(tokens)
            case decoder.Remark(text):
                self.progress.note(text)
            case RowTrace(index):
                task = self.jobs[worker].pop(index)
                self.writer.write(task, event)
                self._on_end(task)
            case RowFailure(index):
                task = self.jobs[worker].pop(index)
                self.writer.write_failure(task, event)
                self._on_end(task)
            case decoder.JobEnd():
                del self.jobs[worker]
                self.writer.store.sync()
            case decoder.WorkerLoss(reason):
                self._on_loss(list(self.jobs.pop(worker).values()), reason)

    def _on_loss(self, tasks: list[Task[PendingRun]], reason: str) -> None:
        """A worker died: its rows are tried again elsewhere."""
        self.writer.store.sync()
        given_up = self.schedule.lost(tasks)
        for task in given_up:
            message = f"its worker was lost twice with nothing else at work ({reason})"
            self.writer.write_failure(task, RowFailure(0, "error", message, 1))
            self._on_end(task)
        if len(tasks) > len(given_up):
            name = tasks[0].what.run.configuration.name
            rows = f"{len(tasks)} unfinished row{'' if len(tasks) == 1 else 's'}"
            self.progress.note(f"{name}: a worker was lost ({reason}); {rows} are tried again")

    def _on_end(self, task: Task[PendingRun]) -> None:
        """A run is stored: the runs that waited for it can begin."""
        if task.group.acting:
            self.acting_left -= task.expected
        plain_full = task.what.run.configuration.is_full and not task.group.acting
        if plain_full:
            self.ended.add(task.key)
        released = self.schedule.done(task)
        for group, pending in released:
            self._add_or_hold(group, pending)
        if plain_full and self.schedule.finished(task.group):
            # Now the lengths are known that everything else depends on.
            self.progress.weigh(self.missing.weight_left() + self.acting_left)
        for group in dict.fromkeys([task.group, *(group for group, _ in released)]):
            self._settle(group)

    def _settle(self, group: BatchGroup) -> None:
        """After the last plain run of a batch come its runs with detectors that act."""
        number = group.config
        if not self.schedule.finished(group):
            return
        if not group.acting:
            acted = [run for c in self.batches[number] for run in self.missing.acted(c)]
            for at, detector in enumerate(self.missing.acting, start=1):
                of_detector = [run for run in acted if run.detector == detector]
                tasks = [self._add(BatchGroup(number, at), run) for run in of_detector]
                if weight := sum(task.expected for task in tasks):
                    self.progress.more(len(of_detector), weight)
                    self.acting_left += weight
        groups = [BatchGroup(number, at) for at in range(len(self.missing.acting) + 1)]
        if all(map(self.schedule.finished, groups)):
            self.unread += self.batches[number]

    def _read_samples(self) -> None:
        """Put samples into the cache, for the report."""
        while self.unread:
            self.study.samples(self.detectors, configurations=[self.unread.pop()])


def _batches(configurations: Sequence[Configuration]) -> list[list[Configuration]]:
    """Configurations that differ in their data set alone, full attention first."""
    batches: dict[str, list[Configuration]] = {}
    for configuration in sorted(configurations, key=lambda c: not c.is_full):
        penalties = [dict(table) for table in configuration.penalties]
        method = [dict(configuration.backend), penalties, dict(configuration.sampling)]
        batches.setdefault(json.dumps(method, sort_keys=True), []).append(configuration)
    return list(batches.values())
