"""vLLM as a peer: a process of its own environment, started once and asked for each run."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from peers.work import PeerError, Run, Work

#: Where `scripts/vllm_env` puts it.
PLACE = Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"
WORKER = Path(__file__).with_name("vllm_worker.py")
PATIENCE = 1800  # seconds for an answer


def python_with_vllm(named: str | None) -> Path:
    """The Python that was named, or that of the environment at its default place.

    Raises:
        InvalidValue: the one named is none.
        PeerError: none was named, and none is there.
    """
    if named is None:
        if PLACE.is_file():
            return PLACE
        raise PeerError("not installed; scripts/vllm_env installs it")
    path = Path(named).expanduser().absolute()
    if not os.access(path, os.X_OK) or not path.is_file():
        raise InvalidValue("vllm", named, "the path of a Python that has vllm")
    return path


class VLLM:
    """vLLM on the CPU with the model, in the dtype and with the threads of the others.

    Args:
        python: of its environment.
        work: the prompts, all of them.

    Raises:
        PeerError: it does not start.
    """

    def __init__(self, python: Path, work: Work) -> None:
        self.work = work
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-I", WORKER],  # -I: none of our modules or settings
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(python, work.threads),
            text=True,
        )
        try:
            told = self._ask({"folder": work.folder, "rows": len(work.prompts)})
        except PeerError:
            self.close()
            raise
        self.about = {name: told[name] for name in ("vllm", "torch", "threads", "openmp")}

    def __call__(self, limit: int) -> Run:
        """Generate at most `limit` tokens of each prompt.

        Raises:
            PeerError: its process ended.
        """
        told = self._ask({"prompts": self.work.prompts, "limit": limit})
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


def _environment(python: Path, threads: int) -> dict[str, str]:
    """As vLLM's documentation has it for CPUs: its own OpenMP, threads bound to cores."""
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    bound = ",".join(map(str, cores[:threads])) if len(cores) >= threads else "nobind"
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "LD_PRELOAD": str(openmp) if openmp.is_file() else os.environ.get("LD_PRELOAD", ""),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": bound,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
