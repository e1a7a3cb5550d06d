"""The decoding part of a sweep: what is left to do, in which order, and where it goes."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import attention
import lil
from experiments.grid import data, models
from experiments.grid.config import Config
from experiments.grid.data.sets import labels, stream_name
from experiments.grid.identity import Cell
from experiments.grid.plan import Plan, Run, build_backends
from experiments.store.samples import acted_runs, reading
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep.failures import free_memory, is_out_of_memory, message

if TYPE_CHECKING:
    from lil.trace import Signal


class Progress:
    """Told how a sweep goes; this one does nothing. Weights are expected tokens."""

    def plan(self, runs: int, stored: int, weight: float) -> None:
        """How many runs there are, how many the store has, and the work left."""

    def cell(self, cell: Cell) -> None:
        """One configuration begins."""

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


@dataclass(frozen=True)
class Prepared:
    """Everything a sweep needs, checked, before anything is written or decoded.

    `problems` maps (model, data set, item id) to the problem and its prompt's token ids.
    """

    config: Config
    plan: Plan
    threads: int
    sources: tuple[models.Source, ...]
    shelf: models.Shelf  # with the first model on it: only once loaded is it known to work
    detectors: tuple[lil.Detector, ...]
    problems: Mapping[tuple[str, str, str], tuple[data.Item, list[int]]]
    about: Mapping[str, Any] = field(default_factory=dict)  # more for the manifest


@dataclass
class Counts:
    """What a sweep did; tokens are generated ones.

    `acted` runs, with a detector after whose verdict something is generated, are not in the plan's
    `runs`.
    """

    runs: int = 0
    stored_before: int = 0
    decoded: int = 0
    failed: int = 0
    decoded_tokens: int = 0
    reused_tokens: int = 0
    acted: int = 0


def require_supported(loaded: models.Loaded, backends: Sequence[attention.Backend]) -> None:
    """Let every backend refuse the model now rather than after hours of other work.

    Raises:
        InvalidValue: a model family a backend does not work with.
    """
    for backend in backends:
        with backend.on(loaded.model):
            pass


class Runner:
    """Decodes what the store lacks, one configuration after the other.

    Args:
        prepared: what to decode.
        store: where traces go.
        progress: told how it goes.
        counts: raised as it goes.
        retry_failed: decode again what failed before.
        sweep: its id, which every record keeps.
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        progress: Progress,
        counts: Counts,
        retry_failed: bool,
        sweep: str,
    ) -> None:
        self.prepared, self.config, self.plan = prepared, prepared.config, prepared.plan
        self.store, self.progress, self.counts = store, progress, counts
        self.study = Study(store, prepared.plan, prepared.config)
        self.retry_failed, self.sweep = retry_failed, sweep
        self.names = labels([cell.dataset for cell in self.plan.cells])
        self.readers = [d for d in prepared.detectors if d.signals]
        self.acting = [d for d in prepared.detectors if acted_runs.acts(d)]

    def run(self) -> None:
        """Decode everything that is left."""
        self.counts.stored_before = sum(not self._pending(run) for run in self.study.runs())
        self.progress.plan(len(self.plan), self.counts.stored_before, self._weight_left())
        for source in self.prepared.sources:
            self._decode_model(source)

    def _decode_model(self, source: models.Source) -> None:
        """One model's cells; when it returns, nothing here holds the model any more."""
        cells = [cell for cell in self.plan.cells if cell.model == source.name]
        if not any(self._left(cell) or self._left_acting(cell) for cell in cells):
            return
        loaded = self.prepared.shelf.take(source)
        require_supported(loaded, build_backends(self.config))
        for cell in sorted(cells, key=lambda cell: not cell.is_full):
            self._decode_cell(loaded, cell)
            self._decode_acting(loaded, cell)
            reading.read(self.study, self.prepared.detectors, cells=[cell])  # kept for the report
            if cell.is_full:  # now the lengths are known that everything else depends on
                self.progress.weigh(self._weight_left())

    # ------------------------------------------------------------ what is left to do

    def _pending(self, run: Run) -> bool:
        record = self.store.get(run.id)
        if record is None or not record.serves(self.study.cap(run)):
            return True
        if not record.has([name for reader in self.readers for name in reader.signals]):
            return True
        return record.failed and self.retry_failed

    def _left(self, cell: Cell) -> list[Run]:
        return [run for run in self.plan.runs(cell) if self._pending(run)]

    def _left_acting(self, cell: Cell) -> list[tuple[lil.Detector, Run]]:
        """Runs in which a detector that acts fires, and that have not been decoded with it."""
        found = []
        able = [detector for detector in self.acting if self.study.able(detector, cell)]
        for run in self.plan.runs(cell) if able else ():
            plain, cap = self.store.get(run.id), self.study.cap(run)
            if plain is None or plain.failed or self._pending(run):
                continue
            left = [detector for detector in able if self._lacks(run, detector, cap)]
            if not left:
                continue
            trace = plain.trace()
            found += [
                (detector, run)
                for detector in left
                if acted_runs.verdict_on(trace, detector, cap) is not None
            ]
        return found

    def _lacks(self, run: Run, detector: lil.Detector, cap: int) -> bool:
        """Whether the store has no run with this detector that acts."""
        record = self.store.get(acted_runs.acted_id(run, detector, cap))
        return record is None or (record.failed and self.retry_failed)

    def _weight(self, run: Run) -> float:
        """Tokens to expect: what full attention took; until that is known, a quarter of the cap."""
        tokens = self.study.full_tokens(run)
        return self.config.max_new_tokens / 4 if tokens is None else float(tokens)

    def _weight_left(self) -> float:
        return sum(self._weight(run) for run in self.study.runs() if self._pending(run))

    def _problem(self, run: Run) -> tuple[data.Item, list[int]]:
        """The problem and its prompt's token ids."""
        return self.prepared.problems[run.cell.model, run.cell.dataset, run.item_id]

    def _request(self, run: Run, detector: lil.Detector | None) -> lil.Request:
        _, prompt_ids = self._problem(run)
        cap = self.study.cap(run)
        forced, signals = self._known_prefix(run, len(prompt_ids), cap)
        if detector is not None:  # it has to see every token decoded
            forced, signals = (), {}
        name = stream_name(run.cell.dataset, run.item_id)
        return lil.Request(prompt_ids, cap, name, run.sample_index, forced, signals)

    def _known_prefix(
        self, run: Run, prompt: int, cap: int
    ) -> tuple[tuple[int, ...], Mapping[str, Signal]]:
        """Tokens of full attention that this backend would give as well, and their signals.

        Prompt and prefix are read in one dense pass, so together they may be `exact_until` long.
        The last token is decoded all the same: something has to measure the run's speed.
        """
        cell = run.cell
        if cell.is_full or cell.penalties or self.config.temperature:
            return (), {}
        full = self.study.full(run)
        room = self.study.backend(cell).exact_until - prompt
        if full is None or full.failed or room <= 0:
            return (), {}
        trace = full.trace()
        return trace.new_ids[: int(min(room, trace.tokens - 1, cap - 1))], trace.signals

    # ------------------------------------------------------------ decoding

    def _decode_cell(self, loaded: models.Loaded, cell: Cell) -> None:
        left = self._left(cell)
        if not left:
            return
        self.progress.cell(cell)
        self._decode(loaded, cell, left)
        self.store.sync()

    def _decode_acting(self, loaded: models.Loaded, cell: Cell) -> None:
        left = self._left_acting(cell)
        for detector in self.acting:
            mine = [run for one, run in left if one == detector]
            if mine:
                self.progress.cell(cell)
                self.progress.more(len(mine), sum(self._weight(run) for run in mine))
                self._decode(loaded, cell, mine, detector)
        self.store.sync()

    def _decode(
        self,
        loaded: models.Loaded,
        cell: Cell,
        runs: Sequence[Run],
        detector: lil.Detector | None = None,
    ) -> None:
        """Decode runs and store each as it ends; on a failure go on with halves of what is left.

        Args:
            loaded: the model.
            cell: of the runs.
            runs: to decode.
            detector: one that acts in all of them; None for none.
        """
        left = dict(enumerate(runs))
        rows = min(len(left), self.config.batch_size)
        failure: Exception | None = None
        with closing(self._stream(loaded, cell, runs, detector)) as traces:
            while left:
                try:
                    index, trace = next(traces)
                except Exception as error:  # whatever it is, it must not end the sweep
                    # Without its frames: they hold the batch's memory, which the next try needs.
                    failure = error.with_traceback(None)
                    break
                self._keep(left.pop(index), detector, trace, rows)
        if failure is None:
            return
        rest = list(left.values())
        free_memory(failure)
        if len(rest) == 1:
            self._keep_failure(rest[0], detector, failure, rows)
            return
        self.progress.note(
            f"{cell.told}: a batch failed ({message(failure)}); "
            f"its {len(rest)} unfinished rows are tried again in halves"
        )
        middle = (len(rest) + 1) // 2
        self._decode(loaded, cell, rest[:middle], detector)
        self._decode(loaded, cell, rest[middle:], detector)

    def _stream(
        self,
        loaded: models.Loaded,
        cell: Cell,
        runs: Sequence[Run],
        detector: lil.Detector | None,
    ) -> Generator[tuple[int, lil.Trace], None, None]:
        done = 0

        def on_step(tokens: int) -> None:
            nonlocal done
            self.progress.step(tokens - done)
            done = tokens

        yield from lil.stream(
            loaded.model,
            loaded.tokenizer,
            [self._request(run, detector) for run in runs],
            backend=self.study.backend(cell),
            penalties=self.study.penalties(cell),
            token_bytes=loaded.token_bytes,
            # Where none acts, those that read hidden states take notes.
            detectors=[] if detector is None else [detector],
            probes=self.readers if detector is None else [],
            on_step=on_step,
            **self.config.decode_options(),
        )

    def _keep(self, run: Run, detector: lil.Detector | None, trace: lil.Trace, rows: int) -> None:
        outcome = {
            "status": "capped" if trace.finish == "length" else "ok",
            "finish": trace.finish,
            "tokens": trace.tokens,
            "signals": sorted(trace.signals),
            "batch_size": rows,
        }
        self._append(run, detector, outcome, trace)
        self.counts.decoded += 1
        self.counts.acted += detector is not None
        self.counts.decoded_tokens += trace.decoded_tokens - trace.reused_tokens
        self.counts.reused_tokens += trace.reused_tokens

    def _keep_failure(
        self, run: Run, detector: lil.Detector | None, error: Exception, rows: int
    ) -> None:
        said = message(error)
        status = "out_of_memory" if is_out_of_memory(error) else "error"
        self._append(run, detector, {"status": status, "message": said, "batch_size": rows}, None)
        self.counts.failed += 1
        name = self.names[run.cell.dataset]
        self.progress.note(f"{run.cell.told}, {name} {run.item_id}: {said}")

    def _append(
        self,
        run: Run,
        detector: lil.Detector | None,
        outcome: Mapping[str, Any],
        trace: lil.Trace | None,
    ) -> None:
        id_, described = run.id, None
        if detector is not None:
            id_ = acted_runs.acted_id(run, detector, self.study.cap(run))
            described = acted_runs.described(detector)
        meta = {
            "cell": run.cell.to_dict(),
            "item_id": run.item_id,
            "prompt": run.problem.prompt,
            "sample_index": run.sample_index,
            "status": None,
            "finish": None,
            "tokens": None,
            "message": None,
            "detector": described,
            "sweep": self.sweep,
            **outcome,
        }
        weight = self._weight(run)  # before the trace is there, which would tell another
        self.store.append(id_, meta, None if trace is None else trace.to_dict())
        self.progress.run_done(weight)
