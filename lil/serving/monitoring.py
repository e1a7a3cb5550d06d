"""What a server reports of requests under watch: log lines and a file."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue


def open_log(field: str, file: str | None) -> Path | None:
    """The path of a file that lines are added to, once it can be written."""
    if file is None:
        return None
    try:
        Path(file).open("a").close()
    except OSError as error:
        raise InvalidValue(field, file, f"a file to write ({error})") from error
    return Path(file)


def add_line(path: Path | None, line: str, log: logging.Logger) -> None:
    """Add a line to a file; a full disk is logged and does not stop the server."""
    if path is None:
        return
    try:
        with path.open("a") as file:
            file.write(line + "\n")
    except OSError:
        log.exception("cannot write to %s", path)


class VerdictLog:
    """Notes each verdict that an engine acts upon: in its log and in a file, if there is one."""

    def __init__(self, log: logging.Logger, file: str | None = None) -> None:
        self._log, self._file = log, open_log("stop_on_file", file)
        self.counts: Counter[str] = Counter()
        self.tokens_below_cap = 0

    def note(self, verdict: Mapping[str, Any]) -> None:
        """Note a verdict of `Ending.see`."""
        self.counts[f"{verdict['detector']}:{verdict['then']}"] += 1
        self.tokens_below_cap += verdict["tokens_below_cap"] if verdict["then"] == "stop" else 0
        totals = {"counts": dict(self.counts), "all_tokens_below_cap": self.tokens_below_cap}
        line = json.dumps({**verdict, **totals})
        self._log.info("ended by a detector: %s", line)
        add_line(self._file, line, self._log)
