"""Rows that are decoded by vLLM in this process: one engine at a time, one for each backend."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import SimpleNamespace

from attention import Backend
from experiments.grid import models, positions
from experiments.sweep.decoder import (
    DecodeJob,
    JobEnd,
    Prepared,
    Remark,
    RowFailure,
    StepCount,
    is_out_of_memory,
    is_own_mistake,
    message,
)
from experiments.sweep.executors.contract import Here, Report
from experiments.sweep.executors.vllm_engine import ServedModel, VLLMEngine
from lil import token_bytes
from lil.decoding.entry import eos_ids


@contextmanager
def opened(prepared: Prepared, source: models.ModelSource) -> Iterator[OnVLLM]:
    """The engine's executor; its engine is gone when the block ends.

    Raises:
        InvalidValue: a tokenizer or a config that cannot be read.
    """
    prepared.shelf.clear()
    executor = OnVLLM(_served(prepared, source))
    try:
        yield executor
    finally:
        executor.close()


def _served(prepared: Prepared, source: models.ModelSource) -> ServedModel:
    experiment = prepared.experiment
    config, tokenizer = experiment.config, models.load_tokenizer(source)
    longest, cap = 0, max(config.full_cap, config.sparse_cap(config.full_cap))
    for (model, dataset), problems in experiment.plan.items.items():
        for problem in problems if model == source.name else ():
            prompt = experiment.prompts[model, dataset, problem.item_id]
            room = cap if problem.room is None else min(cap, problem.room)
            longest = max(longest, len(prompt) + room)
    generation = SimpleNamespace(generation_config=positions.generation(source))
    return ServedModel(
        source,
        config.batch_size,
        longest,
        positions.positions(source),
        config.check_every,
        token_bytes(tokenizer),
        eos_ids(generation, tokenizer),
    )


class OnVLLM(Here):
    """Decodes here, a job at a time, with the engine of its backend.

    Args:
        model: what the engines are made for.
    """

    def __init__(self, model: ServedModel) -> None:
        super().__init__()
        self._model = model
        self._engine: VLLMEngine | None = None

    def wait(self, report: Report) -> None:
        """Decode the job; after a failure it goes on with the rows that are left, one by one.

        Raises:
            InvalidValue: an engine that does not start with this model and backend.
        """
        job = self.taken()
        batches = deque([[*range(len(job.requests))]])
        while batches:
            batches.extend(self._decode(job, batches.popleft(), report))
        report(0, JobEnd())

    def _decode(self, job: DecodeJob, rows: Sequence[int], report: Report) -> list[list[int]]:
        """Rows of a job as they end; what is to be tried again where the engine fails."""
        together = min(len(rows), self._model.rows)
        left = [*rows]
        with closing(self._engine_of(job.backend).decode(job, rows, together)) as events:
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
            else:
                return []
        self.close()  # nobody knows what state it is in
        text = message(failure)
        if len(left) > 1:
            again = f"its {len(left)} unfinished rows are tried again one by one"
            report(0, Remark(f"{job.name}: a batch failed ({text}); {again}"))
            return [[row] for row in left]
        status = "out_of_memory" if is_out_of_memory(failure) else "error"
        report(0, RowFailure(left[0], status, text, together))
        return []

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
