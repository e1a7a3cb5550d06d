"""vLLM as a peer, in an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path

from attention.errors import InvalidValue
from peers.piped import Piped
from peers.work import PeerError, Run, Work

#: Where `scripts/vllm_env` puts it.
PLACE = Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"
WORKER = Path(__file__).with_name("vllm_worker.py")


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


class VLLM(Piped):
    """vLLM on the CPU with the model and with the threads of the others.

    Args:
        python: of its environment.
        work: the prompts, all of them.
        dtype: of the weights.

    Raises:
        PeerError: it does not start.
    """

    def __init__(self, python: Path, work: Work, dtype: str = "float32") -> None:
        self.work = work
        first = {"folder": work.folder, "rows": len(work.prompts), "dtype": dtype}
        super().__init__(python, WORKER, _environment(python, work.threads), first)

    def __call__(self, limit: int) -> Run:
        """Generate at most `limit` tokens of each prompt.

        Raises:
            PeerError: its process ended.
        """
        return self.run(self.work.prompts, limit)


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
