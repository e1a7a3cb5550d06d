"""The sweep: full attention first, then every sparse configuration, each trace decoded once.

What the store already has is not decoded again. A sparse run starts from the tokens full attention
gave as long as both are known to be equal. A batch that fails is halved until the row at fault is
alone; that row is stored as failed, and the sweep goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attention
import lil
from attention.errors import InvalidValue
from experiments import data, manifest, models, replay, scoring
from experiments.config import Config
from experiments.failures import free_memory, is_out_of_memory, message
from experiments.identity import Cell, prompt_digest
from experiments.plan import (
    Methods,
    Plan,
    Run,
    build_backends,
    build_cells,
    build_detectors,
    build_penalties,
    describe_penalties,
)
from experiments.store import Store, require_writable
from lil.replaying import require_stop

if TYPE_CHECKING:
    from experiments.plan import Penalties


class Watcher:
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

    def note(self, text: str) -> None:
        """Something a reader should know."""


@dataclass(frozen=True)
class Prepared:
    """Everything a sweep needs, checked, before anything is written or decoded."""

    config: Config
    device: str
    threads: int
    sources: tuple[models.Source, ...]
    backends: tuple[attention.Backend, ...]
    penalties: tuple[Penalties, ...]
    detectors: tuple[lil.Detector, ...]
    problems: Mapping[str, Sequence[data.Item]]
    prompts: Mapping[tuple[str, str, str], list[int]]  # (model, data set, item id) -> token ids
    plan: Plan
    first: models.Loaded  # the first model, loaded: only then is it known to work


@dataclass
class Counts:
    """What a sweep did. Tokens are generated ones."""

    runs: int = 0
    stored_before: int = 0
    decoded: int = 0
    failed: int = 0
    decoded_tokens: int = 0
    reused_tokens: int = 0


@dataclass
class Outcome:
    """A sweep that ran to its end: its manifest and what it did."""

    manifest: dict[str, Any]
    counts: Counts = field(default_factory=Counts)


def prepare(config: Config, out: Path) -> Prepared:
    """Check all of a sweep: names, budgets, problems, models, output folder; nothing is written.

    Raises:
        InvalidValue: the first thing that cannot be used.
    """
    require_writable(out)
    backends = tuple(build_backends(config))
    penalties = tuple(build_penalties(config))
    detectors = tuple(build_detectors(config))
    for detector in detectors:
        require_stop(detector, "detectors are replayed over traces decoded without them")
    device = models.resolve_device(config.device)
    datasets = data.expand(config.datasets)
    sources = tuple(models.find(name, config.revision) for name in config.models)
    problems = {name: data.load(name, config.split, config.limit) for name in datasets}
    for name, items in problems.items():
        for scorer in {item.scorer for item in items}:
            scoring.require(scorer, name)
    threads = models.use_threads(config.threads)

    cells: list[Cell] = []
    items_of: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}
    prompts: dict[tuple[str, str, str], list[int]] = {}
    for source in sources:
        tokenizer = _tokenizer(source)
        cells += build_cells(config, source.name, source.digest, datasets, backends, penalties)
        for dataset, items in problems.items():
            for item in items:
                prompts[source.name, dataset, item.id] = item.prompt_ids(tokenizer)
            items_of[source.name, dataset] = tuple(
                (item.id, prompt_digest(prompts[source.name, dataset, item.id])) for item in items
            )
    first = models.load(sources[0], config.dtype, device)
    require_supported(first, backends)
    plan = Plan(tuple(cells), items_of, config.samples_per_problem)
    return Prepared(
        config=config,
        device=device,
        threads=threads,
        sources=sources,
        backends=backends,
        penalties=penalties,
        detectors=detectors,
        problems=problems,
        prompts=prompts,
        plan=plan,
        first=first,
    )


def _tokenizer(source: models.Source) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.location, revision=source.revision)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidValue("model", source.name, f"a model with a tokenizer ({reason})") from error


def require_supported(loaded: models.Loaded, backends: Sequence[attention.Backend]) -> None:
    """Let every backend refuse the model now rather than after hours of other work.

    Raises:
        InvalidValue: a model family a backend does not work with.
    """
    for backend in backends:
        with backend.on(loaded.model):
            pass


def run(
    prepared: Prepared,
    out: Path,
    *,
    preset: str,
    arguments: Sequence[str],
    watcher: Watcher,
    retry_failed: bool = False,
) -> Outcome:
    """Decode what the store lacks.

    Args:
        prepared: from `prepare`.
        out: folder of the store; made if need be.
        preset, arguments: as given, for the manifest.
        watcher: told how it goes.
        retry_failed: decode again what failed before.

    Raises:
        InvalidValue: no space left, or a later model that does not load.
        KeyboardInterrupt: passed on once the store and the manifest are safe.
    """
    config = prepared.config
    values: dict[str, Any] = {
        "status": "running",
        "preset": preset,
        "arguments": list(arguments),
        "config": config.to_dict(),
        "seed": config.seed,
        "models": [{"name": s.name, "digest": s.digest} for s in prepared.sources],
        "penalties": [table for p in prepared.penalties for table in describe_penalties(p)],
        "detectors": [{"name": d.name, **d.params()} for d in prepared.detectors],
        **manifest.conditions(prepared.device, config.dtype, prepared.threads),
        "started": manifest.now(),
        "ended": None,
        "counts": None,
        "plan": prepared.plan.to_dict(),
    }
    counts = Counts(runs=len(prepared.plan))
    with Store(out) as store:
        for notice in store.notices:
            watcher.note(notice)
        manifest.write(out, values)
        try:
            _Runner(prepared, store, watcher, counts, retry_failed).run()
            values["status"] = "finished"
        except KeyboardInterrupt:
            values["status"] = "interrupted"
            raise
        except BaseException:
            values["status"] = "failed"
            raise
        finally:
            values["ended"] = manifest.now()
            values["counts"] = vars(counts)
            store.sync()
            manifest.write(out, values)
    return Outcome(values, counts)


@dataclass(frozen=True)
class _Work:
    """One run that has to be decoded."""

    run: Run
    item: data.Item
    prompt_ids: list[int]
    cap: int
    forced: tuple[int, ...]
    weight: float


class _Runner:
    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        watcher: Watcher,
        counts: Counts,
        retry_failed: bool,
    ) -> None:
        self.prepared, self.config, self.plan = prepared, prepared.config, prepared.plan
        self.store, self.watcher, self.counts = store, watcher, counts
        self.retry_failed = retry_failed
        self.items = {
            (dataset, item.id): item
            for dataset, items in prepared.problems.items()
            for item in items
        }
        self.methods = Methods(prepared.backends, prepared.penalties)

    def run(self) -> None:
        self.counts.stored_before = sum(
            not self._pending(run, cap)
            for run, cap in replay.capped_runs(self.store, self.plan, self.config)
        )
        self.watcher.plan(len(self.plan), self.counts.stored_before, self._weight_left())
        for number, source in enumerate(self.prepared.sources):
            cells = [cell for cell in self.plan.cells if cell.model == source.name]
            if not any(self._left(cell) for cell in cells):
                continue
            loaded = self.prepared.first
            if number:
                loaded = models.load(source, self.config.dtype, self.prepared.device)
                require_supported(loaded, self.prepared.backends)
            for cell in sorted(cells, key=lambda cell: not cell.is_full):
                self._decode_cell(loaded, cell)
                if cell.is_full:  # now the lengths are known that everything else depends on
                    self.watcher.weigh(self._weight_left())

    # ------------------------------------------------------------ what is left to do

    def _pending(self, run: Run, cap: int) -> bool:
        record = self.store.get(run.id)
        if record is None or not record.serves(cap):
            return True
        return record.failed and self.retry_failed

    def _left(self, cell: Cell) -> list[tuple[Run, int]]:
        runs = ((run, self._cap(run)) for run in self.plan.runs(cell))
        return [(run, cap) for run, cap in runs if self._pending(run, cap)]

    def _cap(self, run: Run) -> int:
        return replay.cap_of(self.store, self.plan, self.config, run)

    def _weight(self, run: Run) -> float:
        """Tokens to expect: what full attention took; until that is known, a quarter of the cap."""
        tokens = replay.full_tokens(self.store, self.plan, self.config, run)
        return self.config.max_new_tokens / 4 if tokens is None else float(tokens)

    def _weight_left(self) -> float:
        return sum(self._weight(r) for cell in self.plan.cells for r, _ in self._left(cell))

    def _work(self, run: Run, cap: int) -> _Work:
        cell = run.cell
        prompt_ids = self.prepared.prompts[cell.model, cell.dataset, run.item_id]
        return _Work(
            run,
            self.items[cell.dataset, run.item_id],
            prompt_ids,
            cap,
            self._known_prefix(run, len(prompt_ids), cap),
            self._weight(run),
        )

    def _known_prefix(self, run: Run, prompt: int, cap: int) -> tuple[int, ...]:
        """Tokens of full attention that this backend would give as well.

        Prompt and prefix are read in one dense pass, so together they may be `exact_until` long.
        The last token is decoded all the same: something has to measure the run's speed.
        """
        cell = run.cell
        if cell.is_full or cell.penalties or self.config.temperature:
            return ()
        full = replay.full_record(self.store, self.plan, run)
        room = self.methods.backend(cell).exact_until - prompt
        if full is None or full.failed or room <= 0:
            return ()
        ids = full.trace()["new_ids"]
        return tuple(ids[: int(min(room, len(ids) - 1, cap - 1))])

    # ------------------------------------------------------------ decoding

    def _decode_cell(self, loaded: models.Loaded, cell: Cell) -> None:
        left = self._left(cell)
        if not left:
            return
        self.watcher.cell(cell)
        self._decode(loaded, cell, [self._work(*one) for one in left])
        self.store.sync()

    def _decode(self, loaded: models.Loaded, cell: Cell, work: Sequence[_Work]) -> None:
        """Decode rows and store each as it ends; on a failure go on with halves of what is left."""
        left = dict(enumerate(work))
        failure: Exception | None = None
        with closing(self._stream(loaded, cell, work)) as traces:
            while left:
                try:
                    index, trace = next(traces)
                except Exception as error:  # whatever it is, it must not end the sweep
                    # Without its frames: they hold the batch's memory, which the next try needs.
                    failure = error.with_traceback(None)
                    break
                self._keep(left.pop(index), trace)
        if failure is None:
            return
        rows = list(left.values())
        free_memory(failure)
        if len(rows) == 1:
            self._keep_failure(rows[0], failure)
            return
        self.watcher.note(
            f"{cell.told}: a batch failed ({message(failure)}); "
            f"its {len(rows)} unfinished rows are tried again in halves"
        )
        middle = (len(rows) + 1) // 2
        self._decode(loaded, cell, rows[:middle])
        self._decode(loaded, cell, rows[middle:])

    def _stream(
        self, loaded: models.Loaded, cell: Cell, work: Sequence[_Work]
    ) -> Generator[tuple[int, lil.Trace], None, None]:
        config = self.config
        done = 0

        def on_step(tokens: int) -> None:
            nonlocal done
            self.watcher.step(tokens - done)
            done = tokens

        yield from lil.stream(
            loaded.model,
            loaded.tokenizer,
            [one.prompt_ids for one in work],
            backend=self.methods.backend(cell),
            penalties=self.methods.penalties(cell),
            max_new_tokens=[one.cap for one in work],
            batch_size=config.batch_size,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            seed=config.seed,
            item_ids=[data.stream_name(one.run.cell.dataset, one.run.item_id) for one in work],
            sample_indices=[one.run.sample_index for one in work],
            forced=[one.forced for one in work],
            check_every=config.check_every,
            on_step=on_step,
        )

    def _keep(self, work: _Work, trace: lil.Trace) -> None:
        solved = scoring.correct(trace.text, work.item.gold, work.item.scorer)
        meta = self._meta(work) | {
            "status": "capped" if trace.finish == "length" else "ok",
            "finish": trace.finish,
            "tokens": trace.tokens,
            "correct": solved,
        }
        self.store.append(work.run.id, meta, trace.to_dict())
        self.counts.decoded += 1
        self.counts.decoded_tokens += trace.tokens - trace.reused_tokens
        self.counts.reused_tokens += trace.reused_tokens
        self.watcher.run_done(work.weight)

    def _keep_failure(self, work: _Work, error: Exception) -> None:
        meta = self._meta(work) | {
            "status": "out_of_memory" if is_out_of_memory(error) else "error",
            "message": message(error),
        }
        self.store.append(work.run.id, meta, None)
        self.counts.failed += 1
        cell = work.run.cell
        self.watcher.note(f"{cell.told}, {cell.dataset} {work.run.item_id}: {message(error)}")
        self.watcher.run_done(work.weight)

    def _meta(self, work: _Work) -> dict[str, Any]:
        run = work.run
        return {
            "cell": run.cell.to_dict(),
            "item_id": run.item_id,
            "prompt": run.prompt,
            "sample_index": run.sample_index,
            "gold": work.item.gold,
            "scorer": work.item.scorer,
            "status": None,
            "finish": None,
            "tokens": None,
            "correct": None,
            "message": None,
        }


__all__ = ["Counts", "Outcome", "Prepared", "Watcher", "prepare", "run"]
