"""Clocks and conditions of the benchmarks."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

import torch
import transformers


def seconds(work: Callable[[], object], device: str) -> float:
    """Seconds until `work` is done, on the device too."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    wait()
    started = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - started


def free_memory(device: str) -> int:
    """Bytes."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_name(device: str) -> str:
    """What the device calls itself."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return platform.processor() or platform.machine()


def conditions() -> dict[str, object]:
    """What a time depends on beside what is timed."""
    return {
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
