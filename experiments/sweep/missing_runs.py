"""What the store lacks of a plan, what is expected of it, and what is asked of `lil` for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import lil
from attention.identity import code
from experiments.grid import data, models
from experiments.grid.config import Config
from experiments.grid.data.sets import stream_name
from experiments.grid.identity import OWN_RUNTIME, Configuration
from experiments.grid.plan import Plan, Run
from experiments.grid.scoring import Scorers
from experiments.store.samples.replay import (
    Firing,
    acted_record,
    continues_after_verdict,
    verdict_on,
)
from experiments.store.study import Study
from experiments.sweep.decoder import DecodeJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lil.trace import Signal


@dataclass(frozen=True)
class Preparation:
    """Everything a sweep needs, checked, before anything is written or decoded.

    `problems` maps (model, data set, item id) to the problem and its prompt's token ids.
    """

    config: Config
    plan: Plan
    threads: int
    sources: tuple[models.ModelSource, ...]
    shelf: models.Shelf  # with the first model on it: only once loaded is it known to work
    detectors: tuple[lil.Detector, ...]
    problems: Mapping[tuple[str, str, str], tuple[data.Item, list[int]]]
    about: Mapping[str, Any] = field(default_factory=dict)  # more for the manifest
    scorers: Scorers = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what nobody should overlook
    steps: float = 0.0  # decode steps to expect, of the model that comes next


class PendingRun(NamedTuple):
    """A run to decode, and what a detector that acts in it said of the plain one, None for none."""

    run: Run
    fired: Firing | None = None

    @property
    def detector(self) -> lil.Detector | None:
        """The one that acts."""
        return None if self.fired is None else self.fired.detector


class MissingRuns:
    """What is left of a plan.

    Args:
        prepared: the plan, its problems and detectors.
        study: its store.
        retry_failed: whether what failed before is left.
    """

    def __init__(self, prepared: Preparation, study: Study, retry_failed: bool) -> None:
        self.prepared, self.study, self.config = prepared, study, prepared.config
        self.retry_failed = retry_failed
        self.readers = tuple(d for d in prepared.detectors if d.signals)
        self.acting = tuple(d for d in prepared.detectors if continues_after_verdict(d))
        self._signals = [name for reader in self.readers for name in reader.signals]
        self.notes_code = code(*self.readers)
        self._codes: dict[int, dict[str, str]] = {}  # by cell of the plan

    def pending(self, run: Run) -> bool:
        """Whether the store lacks a run, or has less of it than is asked for."""
        record = self.study.store.get(run.id)
        if record is None or not record.covers_cap(self.study.cap(run)) or self.of_other_code(run):
            return True
        if not record.has(self._signals):
            return True
        return record.failed and self.retry_failed

    def of_other_code(self, run: Run) -> dict[str, str]:
        """What of the code by which a stored run was decoded is another now, or not known.

        Returns:
            Digests of now, by import path and file; none where there is no such run.
        """
        record = self.study.store.get(run.id)
        if record is None:
            return {}
        wanted = self.code(run.configuration)
        found = {key: now for key, now in wanted.items() if record.code.get(key) != now}
        if record.failed or not record.has(self._signals):
            return found  # it has no notes that could be read
        notes = self.notes_code.items()
        return found | {key: now for key, now in notes if record.notes_code.get(key) != now}

    def code(self, configuration: Configuration) -> dict[str, str]:
        """Digests of the methods and penalties of a cell that do not ship."""
        if id(configuration) not in self._codes:
            self._codes[id(configuration)] = code(
                self.study.backend(configuration), *self.study.penalties(configuration)
            )
        return self._codes[id(configuration)]

    def acted(self, configuration: Configuration) -> Iterator[PendingRun]:
        """Runs in which a detector that acts fires, and that have not been decoded with it."""
        able = [
            detector for detector in self.acting if self.study.supports(detector, configuration)
        ]
        for run in self.study.plan.runs(configuration) if able else ():
            plain, cap = self.study.store.get(run.id), self.study.cap(run)
            if plain is None or plain.failed or self.pending(run):
                continue
            trace = plain.trace()
            for detector in able:
                verdict = verdict_on(trace, detector, cap)
                if verdict is None:
                    continue
                fired = Firing(run, plain, cap, detector, verdict)
                record = acted_record(self.study.store, fired)
                if record is None or (record.failed and self.retry_failed):
                    yield PendingRun(run, fired)

    def key(self, pending: PendingRun) -> str:
        """What its record will be called."""
        return pending.run.id if pending.fired is None else pending.fired.id

    def weight(self, run: Run) -> float:
        """Tokens to expect: what full attention took; until that is known, a quarter of the cap."""
        tokens = self.study.full_tokens(run)
        return self.study.full_cap(run) / 4 if tokens is None else float(tokens)

    def weight_left(self) -> float:
        """Tokens to expect of everything but runs with detectors that act."""
        return sum(self.weight(run) for run in self.study.runs() if self.pending(run))

    def steps_left(self, model: str) -> float:
        """Decode steps to expect of a model's runs, in full batches."""
        runs = (
            run
            for run in self.study.runs()
            if run.configuration.model == model and self.pending(run)
        )
        return sum(map(self.weight, runs)) / self.config.batch_size

    def prompt(self, run: Run) -> list[int]:
        """Token ids of its prompt."""
        return self.prepared.problems[
            run.configuration.model, run.configuration.dataset, run.item_id
        ][1]

    def job(self, pending: Sequence[PendingRun]) -> DecodeJob:
        """What is asked for: runs of one configuration and one detector."""
        run, detector = pending[0].run, pending[0].detector
        return DecodeJob(
            name=run.configuration.name,
            requests=tuple(self._request(one.run, one.detector) for one in pending),
            backend=self.study.backend(run.configuration),
            penalties=self.study.penalties(run.configuration),
            # Where none continues_after_verdict, those that read hidden states take notes.
            detectors=() if detector is None else (detector,),
            probes=self.readers if detector is None else (),
            options=self.config.decode_options()
            | {"seed": run.configuration.sampling.get("seed", 0)},
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
        """Tokens of full attention that this backend would give as well, and their signals.

        Prompt and prefix are read in one dense pass, so together they may be `exact_until` long.
        The last token is decoded all the same: something has to measure the run's speed.
        """
        configuration = run.configuration
        other = configuration.runtime != OWN_RUNTIME  # which takes no known beginning
        if configuration.is_full or configuration.penalties or self.config.temperature or other:
            return (), {}
        full = self.study.full(run)
        room = self.study.backend(configuration).exact_until - prompt
        if full is None or full.failed or room <= 0:
            return (), {}
        trace = full.trace()
        return trace.new_ids[: int(min(room, trace.tokens - 1, cap - 1))], trace.signals
