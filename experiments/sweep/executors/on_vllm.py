"""Rows that are decoded by vLLM in this process: one engine at a time, one for each backend."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

from experiments.grid import models, positions
from experiments.sweep.decoder import (
    DecodeJob,
    JobEnd,
    Prepared,
    Remark,
    RowFailure,
    StepCount,
    is_out_of_memory,
    message,
)
from experiments.sweep.executors.contract import Here, Report
from experiments.sweep.executors.vllm_engine import ServedModel, VLLMEngine
from lil import token_bytes
from lil.decoding.entry import eos_ids

if TYPE_CHECKING:
    from attention import Backend


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
        for one in problems if model == source.name else ():
            prompt = experiment.prompts[model, dataset, one.item_id]
            room = cap if one.room is None else min(cap, one.room)
            longest = max(longest, len(prompt) + room)
    return ServedModel(
        source,
        config.batch_size,
        longest,
        positions.positions(source),
        config.check_every,
        token_bytes(tokenizer),
        eos_ids(SimpleNamespace(generation_config=positions.generation(source)), tokenizer),
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
        """Decode the job; after a failure it goes on with halves of what is left.

        Raises:
            InvalidValue: an engine that does not start with this model and backend.
        """
        job = self.taken()
        parts = deque([[*range(len(job.requests))]])
        while parts:
            rows = parts.popleft()
            parts.extendleft(reversed(self._decode(job, rows, report)))
        report(0, JobEnd())

    def _decode(self, job: DecodeJob, rows: Sequence[int], report: Report) -> list[list[int]]:
        """Rows of a job as they end; what is to be tried again where the engine fails."""
        together = min(len(rows), self._model.rows)
        left = [*rows]
        with closing(self._with(job.backend).decode(job, rows, together)) as events:
            while left:
                try:
                    event = next(events)
                except Exception as error:  # whatever it is, it must not end the sweep
                    failure = error.with_traceback(None)
                    break
                if not isinstance(event, StepCount):
                    left.remove(event.index)
                report(0, event)
            else:
                return []
        self.close()  # nobody knows what state it is in
        said = message(failure)
        if len(left) == 1:
            status = "out_of_memory" if is_out_of_memory(failure) else "error"
            report(0, RowFailure(left[0], status, said, together))
            return []
        again = f"its {len(left)} unfinished rows are tried again in halves"
        report(0, Remark(f"{job.name}: a batch failed ({said}); {again}"))
        middle = (len(left) + 1) // 2
        return [left[:middle], left[middle:]]

    def _with(self, backend: Backend) -> VLLMEngine:
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
