"""Decoding one job, wherever that is done: requests go in, events come out."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import lil
from experiments.grid import models
from experiments.grid.sources import code
from experiments.store import manifest

#: What becomes of a step that is not compiled: nobody tried, or it failed.
AS_IT_IS, NOT_COMPILED = "the model as it is", "not compiled"
#: What a worker reports whose step another one is compiling.
ELSEWHERE = "by another worker"

if TYPE_CHECKING:
    import attention
    from experiments.grid.config import Config
    from experiments.grid.experiment import Experiment
    from lil.penalties import Penalty


#: What a manifest says of where models are: engine, device, its name, threads, compiled step.
WorkerPlace = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """An experiment that can be decoded here."""

    experiment: Experiment
    shelf: models.Shelf
    threads: int
    engine: str
    own_code: Mapping[str, str]  # digests of the classes that do not ship with the project


@dataclass(frozen=True)
class Setup:
    """What a worker needs before its first job."""

    source: models.ModelSource
    config: Config
    backends: tuple[attention.Backend, ...]
    probes: tuple[lil.Detector, ...]
    device: str
    threads: int | None = None
    steps: float = 0.0

    def load(self) -> tuple[models.LoadedModel, WorkerPlace]:
        """The model, and where it is, for a manifest."""
        config = self.config
        models.quiet_transformers()
        threads = models.use_threads(self.threads)
        device = models.resolve_device(self.device)
        loaded = models.load(self.source, config.dtype, device)
        engine = require_supported(loaded, self.backends, config.engine)
        compiled = compile_step(loaded, self.backends[0], config.compile, self.steps, self.probes)
        return loaded, {
            "compile": compiled,
            "engine": engine,
            "device": device,
            "device_name": manifest.device_name(device),
            "threads": threads,
        }


def require_supported(
    loaded: models.LoadedModel,
    backends: Sequence[attention.Backend],
    engine: str,
    prompts: Sequence[int] = (),
) -> str:
    """Let backends refuse the model, and prompts of so many tokens, now and not after hours."""
    from lil.decoding.filling import check_prompts  # torch, which --help does not wait for

    for backend in backends:
        with backend.on(loaded.model, engine) as cache:
            name = cache.session.engine
            check_prompts(loaded.model, cache, prompts)
    return name


def compile_step(
    loaded: models.LoadedModel,
    backend: attention.Backend,
    mode: str,
    steps: float,
    probes: Sequence[lil.Detector] = (),
) -> str:
    """Compile the model's decode step for the jobs that follow, if the mode says so."""
    if mode == "off":
        return mode
    from attention.patching.compiled import compiled
    from attention.patching.decode_step import NotCompiled
    from lil.decoding.compiling import work
    from lil.hidden_states import HiddenStates

    due = work(mode, loaded.model, steps, margin=1.5)
    read = sorted({block for probe in probes for block in probe.blocks})
    states = HiddenStates(loaded.model, read).modules
    try:
        with backend.on(loaded.model) as cache:
            # Who comes second decodes as it is until the step is there, unless all are to wait.
            step = compiled(loaded.model, cache, states=states, wait=mode == "on", **due)
    except NotCompiled as error:
        return f"{NOT_COMPILED}: {error}" if due["make"] else AS_IT_IS
    if step is None:
        return ELSEWHERE if due["make"] else f"{AS_IT_IS}: too little is left to decode"
    return f"{step.how} in {step.seconds:.0f} s" if step.seconds else "kept from earlier"


@dataclass(frozen=True)
class DecodeJob:
    """Rows of one configuration, and how to decode them."""

    name: str
    requests: tuple[lil.Request, ...]
    backend: attention.Backend
    penalties: tuple[Penalty, ...]
    detectors: tuple[lil.Detector, ...]
    probes: tuple[lil.Detector, ...]
    options: Mapping[str, Any]


class StepCount(NamedTuple):
    """So many tokens were chosen since the last such event."""

    tokens: int


@dataclass(frozen=True)
class RowTrace:
    """A row ended; `rows` were decoded together."""

    index: int
    trace: lil.Trace
    rows: int


@dataclass(frozen=True)
class RowFailure:
    """A row cannot be decoded; `status` is "out_of_memory" or "error"."""

    index: int
    status: str
    message: str
    rows: int


class Remark(NamedTuple):
    """A sentence for the user."""

    text: str


@dataclass(frozen=True)
class JobEnd:
    """All rows of the job have ended."""


class WorkerLoss(NamedTuple):
    """The worker is gone, its job unfinished."""

    reason: str


Event = StepCount | RowTrace | RowFailure | Remark | JobEnd | WorkerLoss


def decode(
    loaded: models.LoadedModel,
    job: DecodeJob,
    on_step: Callable[[int], None],
    rows: Sequence[int] | None = None,
) -> Generator[RowTrace | RowFailure | Remark, None, None]:
    """Every row as it ends; after a failure, halves of the rows that are left."""
    left = dict(enumerate(range(len(job.requests)) if rows is None else rows))
    size = job.options["batch_size"]
    batch = len(left) if size == "auto" else min(len(left), size)
    failure: Exception | None = None
    counted = 0

    def step(tokens: int) -> None:
        nonlocal counted
        on_step(tokens - counted)
        counted = tokens

    def begun(rows: int) -> None:
        nonlocal batch
        batch = rows

    def stream() -> Generator[tuple[int, lil.Trace], None, None]:  # fails at its first row
        yield from lil.stream(
            loaded.model,
            loaded.tokenizer,
            [job.requests[row] for row in left.values()],
            backend=job.backend,
            penalties=job.penalties,
            token_bytes=loaded.token_bytes,
            detectors=job.detectors,
            probes=job.probes,
            on_batch=begun,
            on_step=step,
            **job.options,
        )

    with closing(stream()) as traces:
        while left:
            try:
                index, trace = next(traces)
            except Exception as error:
                if is_own_mistake(error, job):
                    raise
                # Without its frames: they hold the batch's memory, which the next try needs.
                failure = error.with_traceback(None)
                break
            yield RowTrace(left.pop(index), trace, batch)
    if failure is None:
        return
    rest, reason, full = list(left.values()), message(failure), is_out_of_memory(failure)
    del failure
    if full:  # what the batch has left behind
        free_memory()
    if len(rest) == 1:
        yield RowFailure(rest[0], "out_of_memory" if full else "error", reason, batch)
        return
    again = f"its {len(rest)} unfinished rows are tried again in halves"
    yield Remark(f"{job.name}: a batch failed ({reason}); {again}")
    middle = (len(rest) + 1) // 2
    for half in (rest[:middle], rest[middle:]):
        yield from decode(loaded, job, on_step, half)


def message(error: Exception) -> str:
    """The error's kind and first line."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


#: Packages whose mistakes must not become the results of rows.
_OURS = ("attention", "lil", "experiments")


def is_own_mistake(error: Exception, job: DecodeJob) -> bool:
    """Whether our code raised an error that only a mistake in it raises, with no other class."""
    if not isinstance(error, (AttributeError, TypeError)):
        return False
    if code(job.backend, *job.penalties, *job.detectors, *job.probes):
        return False  # a user's class may be what it stumbled over
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = str(frames[-1].f_globals.get("__name__", "")) if frames else ""
    return module.partition(".")[0] in _OURS


def is_out_of_memory(error: Exception) -> bool:
    """Whether the machine's or the device's memory ran out."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def free_memory() -> None:
    """Give back what a batch that did not fit has left behind."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # does nothing where no GPU was used
