"""A sweep as it is read back: what was asked for, which runs that makes, and what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.grid.config import Config, check
from experiments.grid.data_sets import labels as dataset_labels
from experiments.grid.identity import Cell
from experiments.grid.plan import Plan, Run, backend_of, penalties_of
from experiments.store import manifest
from experiments.store.labels import labels, penalty_labels
from experiments.store.sample import Sample
from experiments.store.samples import samples_of
from experiments.store.store import Record, Store

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
        manifest: what the last sweep wrote beside them, if it has been read.
    """

    store: Store
    plan: Plan
    config: Config
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Study:
        """A store as its last sweep left it.

        Raises:
            InvalidValue: no store there.
        """
        values = manifest.read(folder)
        config = Config(**check(values["config"], str(folder / manifest.NAME)))
        return cls(Store(folder), Plan.from_dict(values["plan"]), config, values)

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.store.path

    def runs(self) -> Iterator[Run]:
        """Every run of the plan."""
        for cell in self.plan.cells:
            yield from self.plan.runs(cell)

    def cap(self, run: Run) -> int:
        """The most tokens a run may have; a sparse one's follows from full attention's trace."""
        if run.cell.is_full:
            return self.config.max_new_tokens
        cap = self.config.sparse_cap(self.full_tokens(run))
        full = self.full(run)
        if full is not None and not full.failed and self._cut(full):
            # How long full attention would have gone on is not known: no room beyond its own.
            return min(cap, self.config.max_new_tokens)
        return cap

    def _cut(self, full: Record) -> bool:
        """Whether a full-attention run goes on beyond its own cap, or would have."""
        longer = int(full.meta["tokens"]) > self.config.max_new_tokens
        return longer or full.meta["finish"] == "length"

    def full(self, run: Run) -> Record | None:
        """The full-attention run of the same problem, if the store has it."""
        return self.store.get(self.plan.full(run).id)

    def full_tokens(self, run: Run) -> int | None:
        """Tokens of full attention on the same problem under its own cap; None if it failed."""
        record = self.full(run)
        if record is None or record.failed:
            return None
        return min(int(record.meta["tokens"]), self.config.max_new_tokens)

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
        self, detectors: Sequence[Detector], on_run: Callable[[], None] | None = None
    ) -> Results:
        """Every run as decoded, and as each detector would have left it.

        Args:
            detectors: replayed over each trace.
            on_run: called after each run, for a progress bar.
        """
        found: list[Sample] = []
        lacking = 0
        named = list(zip(labels(detectors), detectors, strict=True))
        called = dataset_labels([cell.dataset for cell in self.plan.cells])
        for cell, penalty in zip(self.plan.cells, penalty_labels(self.plan), strict=True):
            able = [(label, one) for label, one in named if self.able(one, cell)]
            for run in self.plan.runs(cell):
                record = self.store.get(run.id)
                samples = [
                    replace(sample, dataset=called[cell.dataset])
                    for sample in samples_of(run, record, self.cap(run), penalty, able, self.store)
                ]
                lacking += any(sample.status == "missing" for sample in samples)
                found += samples
                if on_run is not None:
                    on_run()
        return Results(found, lacking)
