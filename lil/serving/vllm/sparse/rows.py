"""What the engine's runner knows of the requests of a step, and what is told of their reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import Counter
from vllm.logger import init_logger

from attention.contract import Counts
from attention.errors import InvalidValue
from lil.serving.blocks import WHOLE, Mask, ReadCounts, Reads
from lil.serving.vllm.values import ATTENTION_FILE, in_full

_LOG = init_logger("vllm.lil.sparse")

#: Where the engine collects metrics of several processes; without it those of a worker are nowhere.
METRICS = "PROMETHEUS_MULTIPROC_DIR"


class StepRows:
    """The rows of a step, as the runner has them when it plans its attention.

    Args:
        runner: of the engine.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def names(self, rows: int) -> list[str]:
        """The requests of the first rows."""
        found: list[str] = self._runner.input_batch.req_ids[:rows]
        return found

    def prompts(self, rows: int) -> Counts:
        """Tokens of each row's prompt, (rows,); `WHOLE` where a row is none of a request."""
        batch = self._runner.input_batch
        found = np.full(rows, WHOLE)
        known = min(rows, batch.num_reqs)
        found[:known] = batch.num_prompt_tokens[:known]
        return found

    def whole(self, rows: int) -> Mask:
        """Which rows ask to be read in full, (rows,)."""
        requests = self._runner.requests
        found = np.zeros(rows, dtype=bool)
        for row, name in enumerate(self.names(rows)):
            found[row] = in_full(requests[name].sampling_params)
        return found


class ReadLog:
    """Tells what requests read: in a line of a file for each, and to the engine's metrics.

    Args:
        counts: of the worker.
        file: where lines are added, or None.

    Raises:
        InvalidValue: the file cannot be written.
    """

    def __init__(self, counts: ReadCounts, file: str | None) -> None:
        self.counts = counts
        self._file = None if file is None else Path(file)
        if self._file is not None:
            try:
                self._file.open("a").close()
            except OSError as error:
                raise InvalidValue(ATTENTION_FILE, file, f"a file to write ({error})") from error
        # Not registered: what is written to that folder is found there.
        self._metrics = (
            {
                name: Counter(f"lil:sparse_{name}", f"Of decode queries: {name}", registry=None)
                for name in asdict(Reads())
            }
            if os.environ.get(METRICS)
            else {}
        )

    def step(self, rows: StepRows, past: Counts, new: Counts) -> None:
        """Count a step of these rows."""
        known = len(rows.names(len(new)))
        more = self.counts.step(
            rows.names(known), past[:known], new[:known], rows.prompts(known), rows.whole(known)
        )
        for name, value in asdict(more).items():
            if value and self._metrics:
                self._metrics[name].inc(value)

    def end(self, names: Iterable[str]) -> None:
        """Requests have ended."""
        for name in names:
            found = self.counts.end(name)
            if found is None or self._file is None:
                continue
            try:
                with self._file.open("a") as file:
                    file.write(json.dumps({"request": name, **asdict(found)}) + "\n")
            except OSError:  # a full disk is no reason to stop serving
                _LOG.exception("cannot write to %s", self._file)
