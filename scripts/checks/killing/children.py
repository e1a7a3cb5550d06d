"""Processes of `lil` that do not each take seconds to import torch."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

#: What every command would import first.
_HEAVY = (
    *("torch", "transformers", "pandas", "scipy.stats", "matplotlib.backends.backend_svg"),
    *("matplotlib.backends.backend_agg", "transformers.models.qwen3.modeling_qwen3"),
    *(f"experiments.cli.commands.{noun}" for noun in ("sweep", "replay", "report")),
)


class Child:
    """A forked process that runs one command: a real one, which SIGKILL ends at any instant.

    Args:
        arguments: of `lil`.

    Attributes:
        returncode: None while it runs; minus the signal that ended it.
        id: of the process, and of its group: it has one of its own.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        for name in _HEAVY:
            importlib.import_module(name)
        sys.stdout.flush()
        self.returncode: int | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="lil-child-")
        self._files = [Path(self._folder.name) / name for name in ("out", "err")]
        self.id = os.fork()
        if self.id == 0:
            self._work(arguments)

    def _work(self, arguments: Sequence[str]) -> None:
        from experiments.cli import main

        code = 1
        try:
            os.setsid()
            for number, path in zip((1, 2), self._files, strict=True):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self.returncode is None:
            done, status = os.waitpid(self.id, os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, how: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.id, how)

    def send_group(self, how: signal.Signals) -> None:
        """Send a signal to it and to all it has started, if it still runs."""
        if self.poll() is None:
            os.killpg(self.id, how)

    def communicate(self) -> tuple[str, str]:
        """Wait for its end: what it printed, and what it said."""
        while self.poll() is None:
            time.sleep(0.01)
        printed, said = (
            path.read_text(encoding="utf-8") if path.exists() else "" for path in self._files
        )
        self._folder.cleanup()
        return printed, said
