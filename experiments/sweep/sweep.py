"""The sweep: full attention first, then every sparse configuration, each trace decoded once.

What the store already has is not decoded again. A sparse run starts from the tokens full attention
gave as long as both are known to be equal. A batch that fails is halved until the row at fault is
alone; that row is stored as failed, and the sweep goes on.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from attention.identity import code
from experiments.grid import data, models, positions, scoring
from experiments.grid.config import Config
from experiments.grid.data.prompts import read_template, unknown_words
from experiments.grid.detectors import build_detectors
from experiments.grid.identity import OWN_RUNTIME, Configuration
from experiments.grid.plan import (
    Plan,
    PlannedProblem,
    build_backends,
    build_configurations,
    build_penalties,
    describe_penalties,
)
from experiments.store import manifest
from experiments.store.files import cache as kept
from experiments.store.files.filesystem import StoreBusyError, drop_halves, is_locked, lock
from experiments.store.store import Store, require_writable
from experiments.store.study import Study
from experiments.sweep.decoder import require_supported
from experiments.sweep.executors import begin, open_executor
from experiments.sweep.missing_runs import MissingRuns, Preparation
from experiments.sweep.result_writer import Counts, Progress
from experiments.sweep.runner import Runner
from lil.detectors import cue_ids
from lil.token_table import token_bytes

if TYPE_CHECKING:
    from attention import Backend


@dataclass
class Outcome:
    """A sweep that ran to its end: its manifest and what it did."""

    manifest: dict[str, Any]
    sweep: str  # its id in the store
    counts: Counts = field(default_factory=Counts)


def prepare(config: Config, out: Path, *, again: bool = False) -> Preparation:
    """Check all of a sweep: names, budgets, problems, models, output folder; nothing is written.

    Args:
        config: what to sweep.
        out: folder of the store.
        again: decode anew what is stored of classes that do not ship and were edited since, which
            is refused otherwise.

    Raises:
        InvalidValue: the first thing that cannot be used.
    """
    require_writable(out)
    if is_locked(out):
        raise _busy(out)
    begin(config)
    backends = tuple(build_backends(config))
    penalties = tuple(build_penalties(config))
    detectors = tuple(build_detectors(config))
    served = config.runtime != OWN_RUNTIME
    remote = config.executor == "ray"  # what devices there are is known on its nodes alone
    device = "cpu" if remote or served else models.resolve_device(config.device)
    sources = tuple(
        models.find(name, config.revision, weights=config.weights) for name in config.models
    )
    scoring.loaded(config.scorer)
    sets = data.load_all(config)
    for one in sets.values():
        one.require_judges()
    scorers = scoring.loaded(*{item.scorer for one in sets.values() for item in one.items})
    threads = models.use_threads(config.threads, config.workers)

    configurations: list[Configuration] = []
    unknown: list[str] = []
    problems: dict[tuple[str, str, str], tuple[data.Item, list[int]]] = {}
    planned: dict[tuple[str, str], tuple[PlannedProblem, ...]] = {}
    for source in sources:
        tokenizer = models.load_tokenizer(source)
        table = token_bytes(tokenizer)
        for detector in detectors:
            cue_ids(detector.action, tokenizer, table)  # unknown words are refused now
        configurations += build_configurations(
            config, source.name, source.digest, tuple(sets), backends, penalties
        )
        most, lengths = positions.positions(source), []
        for dataset, of_set in sets.items():
            prompts = {item.id: item.prompt_ids(tokenizer) for item in of_set.items}
            unknown += unknown_words(tokenizer, [*prompts.values()], f"{dataset} ({source.name})")
            for item in of_set.items:
                problems[source.name, dataset, item.id] = (item, prompts[item.id])
                lengths.append(positions.Prompt(dataset, item.id, len(prompts[item.id])))
            planned[source.name, dataset] = tuple(
                PlannedProblem.of(item, prompts[item.id], most) for item in of_set.items
            )
        positions.require_room(source.name, most, lengths, beyond=config.beyond_positions)
    plan = Plan(tuple(configurations), planned, config.samples_per_problem)
    shelf = models.Shelf(config.dtype, device, None if remote else config.device_map)
    made_by = code(*backends, *itertools.chain(*penalties), *detectors)
    said = (*(line for one in sets.values() for line in one.said), *unknown)
    prepared = Preparation(
        config, plan, threads, sources, shelf, detectors, problems, scorers=scorers, warnings=said
    )
    if made_by and not again:
        _require_same_code(prepared, out)
    engine = _engine(config, sources, shelf, backends)
    about = {
        "datasets": [one.about() for one in sets.values()],
        "prompt": _prompt(config),
        "engine": engine,
        "code": made_by,
        # What a reader without these classes has to know of them.
        "keeps_all": [one.identity() for one in backends if one.keeps_all],
    }
    return dataclasses.replace(prepared, about=about)


def _engine(
    config: Config,
    sources: Sequence[models.ModelSource],
    shelf: models.Shelf,
    backends: Sequence[Backend],
) -> str:
    """What reads keys and values; the first model is loaded for it, but by an engine for serving.

    Raises:
        InvalidValue: a model that does not load, or that a backend does not work with.
    """
    if config.runtime == OWN_RUNTIME:
        return require_supported(shelf.take(sources[0]), backends, config.engine)
    from experiments.sweep.executors import vllm_limits  # torch comes with it

    for source in sources:
        vllm_limits.require_layers(source.name, positions.layers(source), backends)
    return config.runtime


def _require_same_code(prepared: Preparation, out: Path) -> None:
    """Refuse a store with runs of this plan that were decoded by classes as they are no more.

    Raises:
        InvalidValue: it is one.
    """
    study = Study(Store(out), prepared.plan, prepared.config)
    backlog = MissingRuns(prepared, study, retry_failed=False)
    runs = collections.Counter(key for run in study.runs() for key in backlog.of_other_code(run))
    if runs:
        told = ", ".join(f"{count} of its runs with another {key}" for key, count in runs.items())
        allowed = (
            f"a store that was decoded by the code as it is now, not {told}: --again decodes them "
            "anew, a new --out keeps both"
        )
        raise InvalidValue("out", str(out), allowed)


def _prompt(config: Config) -> dict[str, str | None]:
    """How problems were put: the texts themselves, for files change."""
    file = config.prompt_template
    return {
        "template": None if file is None else read_template(file),
        "system": config.system,
    }


def run(
    prepared: Preparation,
    out: Path,
    *,
    preset: str,
    arguments: Sequence[str],
    progress: Progress,
    retry_failed: bool = False,
) -> Outcome:
    """Decode what the store lacks.

    Args:
        prepared: from `prepare`.
        out: folder of the store; made if need be.
        preset, arguments: as given, for the manifest.
        progress: told how it goes.
        retry_failed: decode again what failed before.

    Raises:
        InvalidValue: no space left, a later model that does not load, or another sweep that is
            writing into this store.
        KeyboardInterrupt: passed on once the store and the manifest are safe.
    """
    try:
        with lock(out) as locked:
            if not locked:
                progress.note("no locks here: a second sweep into this store would not be noticed")
            for folder in (out / manifest.FOLDER, kept.folder(out)):
                drop_halves(folder)
            return _run(prepared, out, preset, arguments, progress, retry_failed)
    except StoreBusyError:
        raise _busy(out) from None


def _busy(out: Path) -> InvalidValue:
    """Who writes there now."""
    who = "another sweep is writing"
    try:
        values = manifest.read(out)
    except InvalidValue:
        values = {"status": None}  # it has the lock and is about to write it
    if values["status"] == "running" and values.get("pid") is not None:
        who += f": process {values['pid']} on {values['host']}, since {values['started']}"
    return InvalidValue("out", str(out), f"a store in which nobody writes ({who})")


def _run(
    prepared: Preparation,
    out: Path,
    preset: str,
    arguments: Sequence[str],
    progress: Progress,
    retry_failed: bool,
) -> Outcome:
    sweep = manifest.new_id()
    config = prepared.config
    values: dict[str, Any] = {
        "status": "running",
        "preset": preset,
        "arguments": list(arguments),
        "config": config.to_dict(),
        "seed": config.seed,
        "models": [
            {"name": s.name, "digest": s.digest, **positions.counted_layers(s)}
            for s in prepared.sources
        ],
        "penalties": [table for p in build_penalties(config) for table in describe_penalties(p)],
        "detectors": [
            {"name": d.name, **d.params(), "signals": sorted(d.signals)} for d in prepared.detectors
        ],
        **prepared.about,
        **manifest.conditions(prepared.shelf.device, config.dtype, prepared.threads),
        "workers": config.workers,
        "executor": config.executor,
        "runtime": manifest.runtime(config.runtime),
        "started": manifest.now(),
        "ended": None,
        "counts": None,
        "plan": prepared.plan.to_dict(),
    }
    counts = Counts(runs=len(prepared.plan))
    manifest.write(out, sweep, values)
    try:
        with Store(out) as store:
            for notice in store.notices:
                progress.note(notice)
            runner = Runner(prepared, store, progress, counts, retry_failed, sweep, open_executor)
            try:
                runner.run()
            finally:
                values |= runner.place
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
        manifest.write(out, sweep, values)
    return Outcome(values, sweep, counts)


__all__ = ["Counts", "Outcome", "Preparation", "Progress", "prepare", "require_supported", "run"]
