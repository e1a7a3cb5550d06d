"""The sweep: full attention first, then every sparse configuration, each trace decoded once.

What the store already has is not decoded again. A sparse run starts from the tokens full attention
gave as long as both are known to be equal. A batch that fails is halved until the row at fault is
alone; that row is stored as failed, and the sweep goes on.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.grid import models, positions
from experiments.grid.config import Config
from experiments.grid.experiment import Experiment
from experiments.grid.identity import OWN_RUNTIME
from experiments.grid.sources import code
from experiments.store import manifest
from experiments.store.files.filesystem import StoreBusyError, is_locked, lock, require_writable
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import executors
from experiments.sweep.decoder import Prepared, require_supported
from experiments.sweep.runner import Counts, MissingRuns, Progress, ResultWriter, Runner


@dataclass
class Outcome:
    """A sweep that ran to its end: its manifest, its id in the store and what it did."""

    manifest: dict[str, Any]
    sweep: str
    counts: Counts = field(default_factory=Counts)


def begin(config: Config, out: Path) -> None:
    """Refuse what can be refused before anything is loaded, and start what workers need."""
    require_writable(out)
    if is_locked(out):
        raise _busy(out)
    executors.begin(config)
    models.resolve_device(_device(config))


def prepare(experiment: Experiment, out: Path, *, again: bool = False) -> Prepared:
    """Check an experiment against its store and its first model; nothing is written."""
    penalties = itertools.chain(*experiment.penalties)
    own_code = code(*experiment.backends, *penalties, *experiment.detectors)
    if own_code and not again:
        _require_same_code(experiment, out)
    config = experiment.config
    threads = models.use_threads(config.threads, config.workers)
    shelf = models.Shelf(config.dtype, models.resolve_device(_device(config)))
    return Prepared(experiment, shelf, threads, _engine(experiment, shelf), own_code)


def _device(config: Config) -> str:
    """Where this process decodes: with vLLM, whose build is that for CPUs, the CPU."""
    return config.device if config.runtime == OWN_RUNTIME else "cpu"


def _engine(experiment: Experiment, shelf: models.Shelf) -> str:
    """What reads keys and values. The first model is loaded for it, unless vLLM loads models."""
    config = experiment.config
    if config.runtime == OWN_RUNTIME:
        source = next(iter(experiment.sources.values()))
        lengths = [*map(len, experiment.prompts.values())]  # of all models, tokenizers differ
        return require_supported(shelf.take(source), experiment.backends, config.engine, lengths)
    from experiments.sweep.executors import on_vllm  # imports torch

    on_vllm.require_compared(experiment)
    return config.runtime


def _require_same_code(experiment: Experiment, out: Path) -> None:
    """Refuse a store with runs of this plan that an earlier state of the user's classes decoded."""
    study = Study.of(Store(out), experiment)
    missing = MissingRuns(study, retry_failed=False)
    runs = collections.Counter(key for run in study.runs() for key in missing.of_other_code(run))
    if runs:
        parts = ", ".join(f"{count} of its runs with another {key}" for key, count in runs.items())
        allowed = (
            f"a store that was decoded by the code as it is now, not {parts}: --again decodes them "
            "anew, a new --out keeps both"
        )
        raise InvalidValue("out", str(out), allowed)


def run(
    prepared: Prepared,
    out: Path,
    *,
    preset: str,
    arguments: Sequence[str],
    progress: Progress,
    retry_failed: bool = False,
) -> Outcome:
    """Decode what the store lacks."""
    with ExitStack() as stack:
        try:
            locked = stack.enter_context(lock(out))
        except StoreBusyError:
            raise _busy(out) from None
        if not locked:
            progress.note("no locks here: a second sweep into this store would not be noticed")
        sweep = manifest.new_id()
        values = _manifest(prepared, preset, arguments)
        counts = Counts(runs=len(prepared.experiment.plan))
        manifest.write(out, sweep, values)
        try:
            store = Store(out)
            for notice in store.notices:
                progress.note(notice)
            missing = MissingRuns(Study.of(store, prepared.experiment), retry_failed)
            writer = ResultWriter(store, progress, counts, sweep, missing)
            runner = Runner(prepared, missing, writer)
            try:
                runner.run()
            finally:
                store.close()
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


def _busy(out: Path) -> InvalidValue:
    """The refusal of a store that another sweep is writing into."""
    who = "another sweep is writing"
    try:
        values = manifest.read(out)
    except InvalidValue:
        values = {"status": None}  # the other sweep has the lock and is about to write it
    if values["status"] == "running" and values.get("pid") is not None:
        who += f": process {values['pid']} on {values['host']}, since {values['started']}"
    return InvalidValue("out", str(out), f"a store in which nobody writes ({who})")


def _manifest(prepared: Prepared, preset: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The manifest of a sweep that begins."""
    experiment, config = prepared.experiment, prepared.experiment.config
    penalties = itertools.chain(*experiment.penalties)
    return {
        "status": "running",
        "preset": preset,
        "arguments": list(arguments),
        "config": config.to_dict(),
        "seed": config.seed,
        "models": [
            {"name": s.name, "digest": s.digest, **positions.counted_layers(s)}
            for s in experiment.sources.values()
        ],
        "penalties": [penalty.identity() for penalty in penalties],
        "detectors": [
            {"name": d.name, **d.params(), "signals": sorted(d.signals)}
            for d in experiment.detectors
        ],
        **experiment.about_problems(),
        "engine": prepared.engine,
        "code": prepared.own_code,
        # A reader without these classes cannot ask them.
        "keeps_all": [b.identity() for b in experiment.backends if b.keeps_all],
        "notices": list(experiment.warnings),
        **manifest.conditions(prepared.shelf.device, config.dtype, prepared.threads),
        "workers": config.workers,
        "runtime": manifest.runtime(config.runtime),
        "started": manifest.now(),
        "ended": None,
        "counts": None,
        "plan": experiment.plan.to_dict(),
    }


__all__ = ["Counts", "Outcome", "Progress", "begin", "prepare", "require_supported", "run"]
