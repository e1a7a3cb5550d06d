"""Sweeps that vLLM decodes in this process: what is refused by name, and one engine a backend."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

from attention import Backend
from attention.errors import InvalidValue
from experiments.grid import models, positions
from experiments.grid.config import Config
from experiments.grid.experiment import Experiment
from experiments.grid.gguf.cache import PACKAGED, is_gguf
from experiments.store.samples.replay import continues_after_verdict
from experiments.sweep.decoder import (
    JobEnd,
    Prepared,
    RowFailure,
    StepCount,
    is_out_of_memory,
    is_own_mistake,
    message,
)
from experiments.sweep.executors.contract import Here, Report
from experiments.sweep.executors.vllm_engine import (
    ServedModel,
    VLLMEngine,
    policy_of,
    request_values,
)
from lil import token_bytes
from lil.decoding.entry import eos_ids

#: What an estimate cannot know.
MEMORY = (
    "memory is what lil.decode would take: under vllm every method holds blocks of all its tokens"
)
NOT_HERE = "vLLM is not installed here: the sweep needs it (docs/serving.md)"


def is_installed() -> bool:
    """Whether the engine, which is not imported, is installed."""
    return importlib.util.find_spec("vllm") is not None


def require_installed() -> None:
    """Refuse the runtime where the engine is not installed."""
    if not is_installed():
        allowed = "transformers; vllm where vLLM 0.32 is installed (docs/serving.md)"
        raise InvalidValue("runtime", "vllm", allowed)


def require_decodable(config: Config) -> None:
    """Refuse what the engine cannot do, or where nobody has compared its tokens."""
    here = "under vllm, which decodes in this process"
    allowed = {
        "dtype": (("float32",), "float32: no other was compared"),
        "weights": (("stored",), "stored under vllm"),
        "device": (("auto", "cpu"), "auto or cpu: a sweep decodes by vLLM's CPU build alone"),
        "device_map": ((None,), "none under vllm"),
        "engine": (("auto",), "auto: kernels are vLLM's own"),
        "compile": (("off", "auto"), "off or auto: vLLM runs eagerly here"),
        "workers": ((1,), f"1 {here}"),
        "executor": (("local",), f"local {here}"),
        "temperature": ((0,), "0: vLLM draws by random numbers of its own"),
        "beyond_positions": ((False,), "false: vLLM ends a request where the model's positions do"),
    }
    for field, (values, text) in allowed.items():
        if getattr(config, field) not in values:
            raise InvalidValue(field, getattr(config, field), text)
    for name in config.models:
        if name in PACKAGED or is_gguf(name):
            raise InvalidValue("model", name, "no GGUF file under vllm")


def require_compared(experiment: Experiment) -> None:
    """Refuse methods, penalties and detectors that the engine cannot run."""
    for backend in experiment.backends:
        policy_of(backend)
        for name, source in experiment.sources.items():
            if backend.dense_layers >= (layers := positions.layers(source)):
                allowed = f"fewer than the {layers} layers of {name}"
                raise InvalidValue("dense_layers", backend.dense_layers, allowed)
    for penalties in experiment.penalties:
        request_values(penalties)
    for detector in experiment.detectors:
        if detector.signals:
            text = "one that reads tokens alone: vLLM shows no hidden states"
            raise InvalidValue("detector", detector.name, text)
        if continues_after_verdict(detector):
            text = "stop, which is replayed: under vllm nothing is generated after a verdict"
            raise InvalidValue("action", detector.action.name, text)


@contextmanager
def opened(prepared: Prepared, source: models.ModelSource) -> Iterator[OnVLLM]:
    """The engine's executor; its engine is gone when the block ends."""
    prepared.shelf.clear()
    experiment = prepared.experiment
    config, tokenizer = experiment.config, models.load_tokenizer(source)
    cap = max(config.full_cap, config.sparse_cap(config.full_cap))
    prompts = (ids for (model, *_), ids in experiment.prompts.items() if model == source.name)
    longest, most = cap + max(map(len, prompts)), positions.positions(source)
    ends = eos_ids(SimpleNamespace(generation_config=positions.generation(source)), tokenizer)
    longest = longest if most is None else min(longest, most)
    table, rows = token_bytes(tokenizer), config.batch_size
    executor = OnVLLM(ServedModel(source, rows, longest, most, config.check_every, table, ends))
    try:
        yield executor
    finally:
        executor.close()


class OnVLLM(Here):
    """Decodes here, a job at a time, with the engine of its backend."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__()
        self._model = model
        self._engine: VLLMEngine | None = None

    def wait(self, report: Report) -> None:
        """Decode the job; where the engine fails, the rows that have not ended fail with it."""
        job = self.taken()
        left = [*range(len(job.requests))]
        with closing(self._engine_of(job.backend).decode(job)) as events:
            while left:
                try:
                    event = next(events)
                except Exception as error:  # whatever it is, it must not end the sweep
                    if is_own_mistake(error, job):
                        raise
                    failure = error.with_traceback(None)
                    break
                if not isinstance(event, StepCount):
                    left.remove(event.index)
                report(0, event)
        if left:
            self.close()  # nobody knows what state it is in
            status = "out_of_memory" if is_out_of_memory(failure) else "error"
            for row in left:
                report(0, RowFailure(row, status, message(failure), len(job.requests)))
        report(0, JobEnd())

    def _engine_of(self, backend: Backend) -> VLLMEngine:
        if self._engine is None or self._engine.backend != backend:
            self.close()
            self._engine = VLLMEngine(self._model, backend)
            self.place = self._engine.place
        return self._engine

    def close(self) -> None:
        """Let the engine go."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
