"""What a server is told of the requests that were ended: log lines, counters, a file."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from attention.errors import InvalidValue
from lil.serving.counters import Counters


class VerdictLog:
    """Notes each verdict that is acted upon.

    A line of the log has the evidence as JSON and the counters so far; with a file, the same object
    is a line of it.

    Args:
        log: the engine's.
        counters: what Prometheus is told.
        file: where lines are added, or None.

    Raises:
        InvalidValue: the file cannot be written.
    """

    def __init__(self, log: logging.Logger, counters: Counters, file: str | None = None) -> None:
        self._log, self._counters = log, counters
        self.counts: Counter[str] = Counter()
        self.tokens_below_cap = 0
        self._file = None if file is None else Path(file)
        if self._file is not None:
            try:
                self._file.open("a").close()
            except OSError as error:
                raise InvalidValue("stop_on_file", file, f"a file to write ({error})") from error

    def note(self, evidence: Mapping[str, object]) -> None:
        """One verdict, as `Ending.see` gives it."""
        self.counts[f"{evidence['detector']}:{evidence['then']}"] += 1
        below = evidence["tokens_below_cap"]
        below = below if evidence["then"] == "stop" and isinstance(below, int) else 0
        self.tokens_below_cap += below
        self._counters.verdict(str(evidence["detector"]), str(evidence["then"]), below)
        line = json.dumps(
            {**evidence, "counts": dict(self.counts), "all_tokens_below_cap": self.tokens_below_cap}
        )
        self._log.info("ended by a detector: %s", line)
        if self._file is not None:
            try:
                with self._file.open("a") as file:
                    file.write(line + "\n")
            except OSError:  # a full disk is no reason to stop serving
                self._log.exception("cannot write to %s", self._file)
