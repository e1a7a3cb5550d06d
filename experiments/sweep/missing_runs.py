"""What the store lacks of a plan, how long it will take, and the jobs that decode it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import lil
from experiments.grid.data.sets import stream_name
from experiments.grid.identity import OWN_RUNTIME, Configuration
from experiments.grid.plan import Run
from experiments.grid.sources import code
from experiments.store.samples.replay import (
    Firing,
    acted_record,
    continues_after_verdict,
    verdict_on,
)
from experiments.store.study import Study
from experiments.sweep.decoder import DecodeJob

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
            options=self.config.decode_options() | {"seed": configuration.sampling.get("seed", 0)},
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
        foreign = configuration.runtime != OWN_RUNTIME  # which takes no known beginning
        if configuration.is_full or configuration.penalties or self.config.temperature or foreign:
            return (), {}
        full = self.study.full(run)
        room = self.study.backend(configuration).exact_until - prompt
        if full is None or full.failed or room <= 0:
            return (), {}
        trace = full.trace()
        return trace.new_ids[: int(min(room, trace.tokens - 1, cap - 1))], trace.signals
