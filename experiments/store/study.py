"""Sweeps as they are read back: their configuration, their runs and what is stored of them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from attention.spec import IMPORT_PATH
from experiments.grid import gym
from experiments.grid.config import Config
from experiments.grid.data.sets import labels as dataset_labels
from experiments.grid.detectors import detectors_of, labels, penalty_labels
from experiments.grid.identity import Configuration
from experiments.grid.plan import Plan, Run
from experiments.grid.scoring import Scorers, is_path, loaded
from experiments.grid.sources import code
from experiments.grid.stored import backend_of, penalties_of
from experiments.store.files.filesystem import is_locked
from experiments.store.files.records import Record
from experiments.store.manifest import paths
from experiments.store.samples.load import ReadingJob, read
from experiments.store.samples.sample import Sample
from experiments.store.store import Store
from experiments.store.sweeps import Sweep, SweepGroup, by_id, groups, latest_compatible, read_all

if TYPE_CHECKING:
    from attention import Backend
    from experiments.grid.experiment import Experiment
    from experiments.grid.plan import Penalties
    from lil import Detector


@dataclass(frozen=True)
class Study:
    """A store, the plan that says which of its runs count, and the configuration behind it."""

    store: Store
    plan: Plan
    config: Config
    manifest: Mapping[str, Any] = field(default_factory=dict)
    sweeps: tuple[Sweep, ...] = ()
    notices: tuple[str, ...] = ()
    scorers: Scorers = field(default_factory=dict)
    experiment: Experiment | None = None

    @classmethod
    def of(cls, store: Store, experiment: Experiment) -> Study:
        """A store as an experiment sees it that is decoded into it."""
        scorers = experiment.scorers
        plan, config = experiment.plan, experiment.config
        return cls(store, plan, config, scorers=scorers, experiment=experiment)

    @classmethod
    def open(cls, folder: Path, sweep: str | None = None, load: Collection[str] = ()) -> Study:
        """A store as its sweeps left it; only import paths in `load` are followed.

        `sweep`: None (the last and all compatible with it), "last" (that alone) or an id's start.
        """
        notices: list[str] = []
        if sweep is None:
            sweeps = read_all(folder, notices)
        elif sweep == "last":
            sweeps = [Sweep.read(paths(folder)[-1])]
        else:
            sweeps = [by_id(folder, sweep)]
        return cls._of(Store(folder), latest_compatible(sweeps), notices, load)

    @classmethod
    def each(cls, folder: Path) -> list[Study]:
        """All sweeps of a store, compatible ones as one study; the newest first."""
        notices: list[str] = []
        first, *others = groups(read_all(folder, notices))
        store = Store(folder)
        later = (cls._of(store, group, [], ()) for group in others)
        return [cls._of(store, first, notices, ()), *later]

    @classmethod
    def _of(
        cls, store: Store, group: SweepGroup, notices: Sequence[str], load: Collection[str]
    ) -> Study:
        writing = paths(store.path)[-1].stem if is_locked(store.path) else None
        sentences = [*notices, *group.warnings(store.path, writing)]
        newest = group.sweeps[0].values
        values = dict(newest) | {"sweeps": [sweep.summary() for sweep in group.sweeps]}
        config: Config = dataclasses.replace(group.config, load=frozenset(load))
        return cls(store, group.plan, config, values, group.sweeps, tuple(sentences))

    @property
    def warnings(self) -> list[str]:
        """What a reader should know: what could not be read, is left out, unfinished or mixed."""
        return [
            *self.store.notices,
            *self.notices,
            *self.manifest.get("notices", ()),
            *self._absent_detectors,
            *self._mixed_code,
            *self._mixed_runtimes,
            *self._unjudged,
        ]

    @property
    def detectors(self) -> list[Detector]:
        """Those of the configuration; of a stored one, those that are here."""
        return self._detectors[0]

    @cached_property
    def _detectors(self) -> tuple[list[Detector], dict[str, InvalidValue]]:
        if self.experiment is not None:
            return [*self.experiment.detectors], {}
        detectors, absent = detectors_of(self.config)
        for detector in detectors if not self.config.typed else ():
            if lacking := self.without_notes(detector, other_code=True):
                allowed = f"notes that its code took as it is now: {lacking} runs have others'"
                absent[detector.name] = InvalidValue("detector", detector.name, allowed)
        return [d for d in detectors if d.name not in absent], absent

    def without_notes(self, detector: Detector, *, other_code: bool = False) -> int:
        """Runs without what a detector notes of hidden states, by its code as it is now."""
        if not detector.signals:
            return 0
        signals, own = sorted(detector.signals), code(detector)
        records = [record for run in self.runs() if (record := self.usable(run)) is not None]
        if other_code:
            return sum(record.has(signals) and not record.noted_by(own) for record in records)
        return sum(not (record.has(signals) and record.noted_by(own)) for record in records)

    @property
    def _absent_detectors(self) -> Iterator[str]:
        for entry, error in () if self.config.typed else self._detectors[1].items():
            line = f"{self.folder}: detector {entry} is not here and left out: {error}"
            if IMPORT_PATH.fullmatch(str(error.value)):
                flag = "--detector" if error.field == "detector" else "--load"
                line += f"; {flag} {error.value} loads it"
            yield line

    @property
    def _mixed_code(self) -> Iterator[str]:
        """Runs that were decoded by other code than the newest of the same classes."""
        runs: dict[str, dict[str, list[str]]] = {}
        for run in self.runs():
            record = self.store.get(run.id)
            if record is None:
                continue
            sweep = str(record.meta["sweep"])
            for key, digest in {**record.code, **record.notes_code}.items():
                runs.setdefault(key, {}).setdefault(digest, []).append(sweep)
        for key, by_digest in runs.items():
            newest = max(by_digest, key=lambda digest: max(by_digest[digest]))
            count, last = sum(map(len, by_digest.values())), len(by_digest[newest])
            if last < count:
                yield (
                    f"{self.folder}: {count - last} of {count} runs were decoded with another "
                    f"{key} than the newest; their sweep's command with --again decodes them anew"
                )

    @property
    def _mixed_runtimes(self) -> Iterator[str]:
        """Configurations measured against full attention that another runtime decoded."""
        pairs: collections.Counter[tuple[str, ...]] = collections.Counter()
        for run in self.runs():
            both = self.store.get(run.id), self.store.get(self.plan.full(run).id)
            runtimes = [str(r.meta["runtime"]) for r in both if r and r.meta.get("runtime")]
            if len(set(runtimes)) == 2:
                pairs[run.configuration.name, *runtimes] += 1
        for (name, own, of_full), count in pairs.items():
            runs = f"1 run of {name} is" if count == 1 else f"{count} runs of {name} are"
            measured = f"measured against full attention decoded by {of_full}"
            yield f"{self.folder}: {runs} decoded by {own} and {measured}"

    @property
    def _unjudged(self) -> Iterator[str]:
        for path in sorted(self.needs() - self.scorers.keys()):
            flag = gym.SCORER if gym.is_named(path) else path
            yield (
                f"{self.folder}: answers are judged by {path}, which is not loaded: "
                f"what is right is not known (--scorer {flag} loads it)"
            )

    def needs(self) -> set[str]:
        """Paths of scorers that do not ship and judge its problems."""
        problems = (p for of_set in self.plan.items.values() for p in of_set)
        return {problem.scorer for problem in problems if is_path(problem.scorer)}

    def needs_any(self, scorer: str) -> bool:
        """Whether a scorer that the user named judges some of its problems."""
        return bool(self._paths_of(scorer))

    def _paths_of(self, scorer: str) -> list[str]:
        """The paths that a name means: itself, or those of every generator."""
        if scorer == gym.SCORER:
            return sorted(filter(gym.is_named, self.needs()))
        return [path for path in self.needs() if path == scorer]

    def judged_by(self, scorer: str | None) -> Study:
        """The study with a scorer that the user named, imported now; as it is for None."""
        if scorer is None:
            return self
        if not (own := self._paths_of(scorer)):
            needed = sorted(self.needs())
            allowed = f"one that the store names ({', '.join(needed) or 'none'})"
            raise InvalidValue("scorer", scorer, allowed, needed)
        return dataclasses.replace(self, scorers={**self.scorers, **loaded(*own)})

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.store.path

    def runs(self) -> Iterator[Run]:
        """Every run of the plan."""
        for configuration in self.plan.configurations:
            yield from self.plan.runs(configuration)

    def cap(self, run: Run) -> int:
        """The most tokens a run may have; a sparse one's follows from full attention's trace."""
        return max(self.caps(run).values())

    def caps(self, run: Run) -> dict[int | None, int]:
        """The most tokens a run may have at each of the sweep's `factors`, the largest last.

        One for all samples of a problem: a cap from one draw alone would cut one side of
        a comparison and not the other.
        """
        factors: tuple[int | None, ...] = self.config.factors or (None,)
        if run.configuration.is_full:
            return dict.fromkeys(factors, self.full_cap(run))
        longest = self.full_tokens(run)
        caps = {factor: self.config.sparse_cap(longest, factor) for factor in factors}
        if any(self._cut(run, full) for full in self._fulls(run)):
            # How long full attention would have gone on is not known: no room beyond its own.
            caps = {factor: min(cap, self.config.full_cap) for factor, cap in caps.items()}
        return {factor: self._within(run, cap) for factor, cap in caps.items()}

    def full_cap(self, run: Run) -> int:
        """The most tokens that full attention may have on the same problem."""
        return self._within(run, self.config.full_cap)

    def _within(self, run: Run, cap: int) -> int:
        room = run.problem.room
        return cap if room is None or self.config.beyond_positions else min(cap, room)

    def _cut(self, run: Run, full: Record) -> bool:
        """Whether a full-attention run goes on beyond its own cap, or would have."""
        longer = int(full.meta["tokens"]) > self.full_cap(run)
        return longer or full.meta["finish"] == "length"

    def _fulls(self, run: Run) -> list[Record]:
        """What the store has of full attention on the problem, all samples of it."""
        records = (self.store.get(full.id) for full in self.plan.fulls(run))
        return [record for record in records if record is not None and not record.failed]

    def full(self, run: Run) -> Record | None:
        """The full-attention run of the same problem, if the store has it."""
        return self.store.get(self.plan.full(run).id)

    def full_tokens(self, run: Run) -> int | None:
        """Tokens of full attention's longest sample of the problem; None until all are there."""
        if any(self.store.get(full.id) is None for full in self.plan.fulls(run)):
            return None
        lengths = [int(record.meta["tokens"]) for record in self._fulls(run)]
        return min(max(lengths), self.full_cap(run)) if lengths else None

    def usable(self, run: Run) -> Record | None:
        """The run's record if it has a trace, as long as its cap asks for."""
        record = self.store.get(run.id)
        usable = record is not None and not record.failed and record.covers_cap(self.cap(run))
        return record if usable else None

    def backend(self, configuration: Configuration) -> Backend:
        """The backend that a configuration names."""
        if self.experiment is not None:
            return self.experiment.backend(configuration)
        return backend_of(self.config, configuration)

    def penalties(self, configuration: Configuration) -> Penalties:
        """The penalties that a configuration names."""
        if self.experiment is not None:
            return self.experiment.penalties_of(configuration)
        return penalties_of(self.config, configuration)

    def supports(self, detector: Detector, configuration: Configuration) -> bool:
        """Whether a configuration's backend can do what a detector's verdict asks for."""
        if configuration.role == "null":
            return False
        if not detector.action.dense:
            return True
        try:
            return self.backend(configuration).keeps_all
        except InvalidValue:
            if self.config.typed:
                raise
            # It is not here: the manifest lists the backends that keep all.
            keeps_all = (sweep.values.get("keeps_all", ()) for sweep in self.sweeps)
            return any(configuration.backend in backends for backends in keeps_all)

    def samples(
        self,
        detectors: Sequence[Detector],
        on_run: Callable[[], None] = lambda: None,
        *,
        configurations: Sequence[Configuration] | None = None,
    ) -> list[Sample]:
        """Every run as decoded, and as each detector would have left it, without texts."""
        named = list(zip(labels(detectors), detectors, strict=True))
        datasets = dataset_labels([c.dataset for c in self.plan.configurations])
        penalties = penalty_labels(self.plan)
        jobs = []
        for configuration, penalty in zip(self.plan.configurations, penalties, strict=True):
            if configurations is None or configuration in configurations:
                planned = self.plan.runs(configuration)
                runs = tuple((run, self.store.get(run.id), self.caps(run)) for run in planned)
                watched = tuple(pair for pair in named if self.supports(pair[1], configuration))
                dataset = datasets[configuration.dataset]
                jobs.append(ReadingJob(configuration, runs, dataset, penalty, watched))
        return read(jobs, self.store, self.scorers, on_run)
