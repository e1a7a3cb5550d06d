"""An engine in a process of its own environment, started once and asked for each run."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers.work import PeerError, Run

PATIENCE = 1800  # seconds for an answer


class Piped:
    """A worker that is asked a line and answers one; the first question starts its engine.

    Args:
        python: of its environment.
        worker: the script that it runs.
        environment: variables.
        first: what it is asked first; its answer is `about`.

    Raises:
        PeerError: it does not start.
    """

    def __init__(
        self, python: Path, worker: Path, environment: Mapping[str, str], first: dict[str, Any]
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-I", worker],  # -I: none of our modules or settings
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        try:
            self.about = self._ask(first)
        except PeerError:
            self.close()
            raise

    def run(self, prompts: Sequence[Sequence[int]], limit: int, **more: Any) -> Run:
        """Generate at most `limit` tokens of each prompt.

        Raises:
            PeerError: its process ended.
        """
        told = self._ask({"prompts": prompts, "limit": limit, **more})
        return Run(told["tokens"], told["seconds"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One line there, one line back."""
        sent, came = self._process.stdin, self._process.stdout
        if sent is None or came is None:
            raise RuntimeError("a process without pipes")
        late = threading.Timer(PATIENCE, self._process.kill)
        late.start()
        try:
            sent.write(json.dumps(question) + "\n")
            sent.flush()
            line = came.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late.cancel()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = [line.strip() for line in self._errors if line.strip()]
            raise PeerError(f"its process ended: {said[-1] if said else 'without a word'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
