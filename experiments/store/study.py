"""Sweeps as they are read back: what was asked for, which runs that makes, and what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.grid.config import Config
from experiments.grid.identity import Cell
from experiments.grid.plan import Plan, Run, as_of_then, backend_of, penalties_of
from experiments.grid.scoring import Scorers, is_path, load
from experiments.store.files import lock
from experiments.store.files.records import Record
from experiments.store.manifest import paths
from experiments.store.samples.of_trace import with_text
from experiments.store.samples.reading import read
from experiments.store.samples.sample import Sample
from experiments.store.store import Store
from experiments.store.sweeps import Group, Sweep, grouped, named, read_all, together

if TYPE_CHECKING:
    from attention import Backend
    from experiments.grid.plan import Penalties
    from lil import Detector


@dataclass(frozen=True)
class Results:
    """Samples of all runs of a plan, and how many of them the store cannot serve."""

    samples: list[Sample]
    missing: int


@dataclass(frozen=True)
class Study:
    """A store, the plan that says which of its runs count, and the configuration behind it.

    Args:
        store: where the traces are.
        plan: which of them count.
        config: caps, and the names of methods as they were typed.
        manifest: of the newest sweep that is shown, if it has been read.
        sweeps: the sweeps that are shown, the newest first.
        notices: what a reader should know of them, a sentence each.
        scorers: of one's own that were asked for: a store's own word imports nothing.
    """

    store: Store
    plan: Plan
    config: Config
    manifest: Mapping[str, Any] = field(default_factory=dict)
    sweeps: tuple[Sweep, ...] = ()
    notices: tuple[str, ...] = ()
    scorers: Scorers = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, sweep: str | None = None) -> Study:
        """A store as its sweeps left it.

        Args:
            folder: of the store.
            sweep: None for the last one and all that fit together with it: the same weights,
                problems, caps, sampling and dtype; "last" for that alone, or the beginning of the
                id of another.

        Raises:
            InvalidValue: no store there, no such sweep, or a manifest that cannot be read.
        """
        notices: list[str] = []
        if sweep is None:
            group = together(read_all(folder, notices))
        elif sweep == "last":
            group = together([Sweep.read(paths(folder)[-1])])
        else:
            group = together([named(folder, sweep)])
        return cls._of(Store(folder), group, notices)

    @classmethod
    def each(cls, folder: Path) -> list[Study]:
        """All sweeps of a store, those that fit together as one study; the newest first.

        Raises:
            InvalidValue: no store there, or a manifest that cannot be read.
        """
        notices: list[str] = []
        first, *others = grouped(read_all(folder, notices))
        store = Store(folder)
        return [cls._of(store, first, notices), *(cls._of(store, one, []) for one in others)]

    @classmethod
    def _of(cls, store: Store, group: Group, notices: Sequence[str]) -> Study:
        writing = paths(store.path)[-1].stem if lock.is_held(store.path) else None
        said = [*notices, *group.said(store.path, writing)]
        values = dict(group.sweeps[0].values) | {"sweeps": [one.told() for one in group.sweeps]}
        config = group.config
        if any("chopper" in name for name in (*config.detectors, *config.detector_params)):
            signals = {name for one in store for name in one.meta.get("signals", ())}
            config = as_of_then(config, signals)
        return cls(store, group.plan, config, values, group.sweeps, tuple(said))

    @property
    def said(self) -> list[str]:
        """What a reader should know: what could not be read, what is left out or unfinished."""
        return [*self.store.notices, *self.notices, *self._unjudged()]

    def _unjudged(self) -> Iterator[str]:
        for path in sorted(self.needs() - self.scorers.keys()):
            yield (
                f"{self.folder}: answers are judged by {path}, a function that is not loaded: "
                f"what is right is not known (--scorer {path} loads it)"
            )

    def needs(self) -> set[str]:
        """Paths of scorers of somebody's own that judge its problems."""
        every = (one.scorer for problems in self.plan.items.values() for one in problems)
        return {scorer for scorer in every if scorer is not None and is_path(scorer)}

    def judged_by(self, scorer: str | None) -> Study:
        """The study with a scorer that the user named, imported now; as it is for None.

        Raises:
            InvalidValue: its problems name no such scorer, or it cannot be imported.
        """
        if scorer is None:
            return self
        needed = sorted(self.needs())
        if scorer not in needed:
            none = "no scorer: the store's problems are judged by one that ships"
            allowed = f"one that the store names: {', '.join(needed)}" if needed else none
            raise InvalidValue("scorer", scorer, allowed, needed)
        return replace(self, scorers={**self.scorers, scorer: load(scorer)})

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.store.path

    def runs(self) -> Iterator[Run]:
        """Every run of the plan."""
        for cell in self.plan.cells:
            yield from self.plan.runs(cell)

    def cap(self, run: Run) -> int:
        """The most tokens a run may have; a sparse one's follows from full attention's trace.

        Never more than the model's positions leave, unless that was asked for.
        """
        return self._within(run, self._asked(run))

    def full_cap(self, run: Run) -> int:
        """The most tokens that full attention may have on the same problem."""
        return self._within(run, self.config.max_new_tokens)

    def _within(self, run: Run, cap: int) -> int:
        room = run.problem.room
        return cap if room is None or self.config.beyond_positions else min(cap, room)

    def _asked(self, run: Run) -> int:
        if run.cell.is_full:
            return self.config.max_new_tokens
        cap = self.config.sparse_cap(self.full_tokens(run))
        full = self.full(run)
        if full is not None and not full.failed and self._cut(run, full):
            # How long full attention would have gone on is not known: no room beyond its own.
            return min(cap, self.config.max_new_tokens)
        return cap

    def _cut(self, run: Run, full: Record) -> bool:
        """Whether a full-attention run goes on beyond its own cap, or would have."""
        longer = int(full.meta["tokens"]) > self.full_cap(run)
        return longer or full.meta["finish"] == "length"

    def full(self, run: Run) -> Record | None:
        """The full-attention run of the same problem, if the store has it."""
        return self.store.get(self.plan.full(run).id)

    def full_tokens(self, run: Run) -> int | None:
        """Tokens of full attention on the same problem under its own cap; None if it failed."""
        record = self.full(run)
        if record is None or record.failed:
            return None
        return min(int(record.meta["tokens"]), self.full_cap(run))

    def served(self, run: Run) -> Record | None:
        """The run's record if it has a trace, as long as its cap asks for."""
        record = self.store.get(run.id)
        usable = record is not None and not record.failed and record.serves(self.cap(run))
        return record if usable else None

    def backend(self, cell: Cell) -> Backend:
        """The backend that a cell names.

        Raises:
            InvalidValue: it is not installed here, or no longer takes these parameters.
        """
        return backend_of(self.config, cell)

    def penalties(self, cell: Cell) -> Penalties:
        """The penalties that a cell names.

        Raises:
            InvalidValue: one is not installed here, or no longer takes these parameters.
        """
        return penalties_of(self.config, cell)

    def able(self, detector: Detector, cell: Cell) -> bool:
        """Whether the cell's backend can do what follows the detector's verdict."""
        return not detector.action.dense or self.backend(cell).keeps_all

    def samples(
        self,
        detectors: Sequence[Detector],
        on_run: Callable[[], None] | None = None,
        *,
        texts: bool = True,
        workers: int = 1,
        named: Sequence[str] | None = None,
    ) -> Results:
        """Every run as decoded, and as each detector would have left it.

        Args:
            detectors: replayed over each trace.
            on_run: called for each run that is done, for a progress bar.
            texts: also the outputs' texts, for which every trace is read; without them, only those
                that have not been read before.
            workers, named: see `reading.read`.
        """
        found = read(self, detectors, on_run, workers, named=named)
        runs = {sample.run for sample in found if sample.status == "missing"}
        return Results([*with_text(found, self.store)] if texts else found, len(runs))
