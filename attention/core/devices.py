"""Host and device: what may be looked at, and how numbers get there without anybody waiting."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention.errors import InvalidValue


def is_synchronous(device: torch.device) -> bool:
    """Whether a look at values there costs nothing: on a CPU.

    Callers name the module, `devices.is_synchronous`, so that a test can treat a CPU otherwise.
    """
    return device.type == "cpu"


def free_memory(device: torch.device | str) -> int:
    """Bytes that tensors can still take there, those that torch keeps for later ones included."""
    device = torch.device(device)
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + idle
    file = Path("/proc/meminfo")
    if device.type != "cpu" or not file.exists():
        raise InvalidValue("device", str(device), "cuda, or cpu under Linux: others do not tell")
    return 1024 * int(dict(x.split()[:2] for x in file.read_text().splitlines())["MemAvailable:"])


def put(numbers: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Host numbers, an array or lists, on a device.

    A copy to a GPU waits for all that it was given before; one from pinned memory takes its turn.
    """
    array = np.asarray(numbers)
    if device.type != "cuda":
        return torch.as_tensor(array, dtype=dtype, device=device)
    # On the host, whatever device torch makes tensors on by default.
    here = torch.as_tensor(array, dtype=dtype, device="cpu")
    return here.pin_memory().to(device, non_blocking=True)


def flash_first(device: torch.device) -> AbstractContextManager[None]:
    """torch's attention without cuDNN's, which makes a new plan for every length of the keys.

    On an H100 a plan takes some 45 ms a layer and the kernel 0.03.
    """
    if device.type != "cuda":
        return nullcontext()
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(kernels)


def fetch(x: Tensor) -> Tensor:
    """`x` on its way to the host: there once an event recorded behind this call has passed.

    A CPU's own tensors are there, and so is what comes from devices that know no such copies.
    """
    if x.device.type != "cuda":
        return x.cpu()
    there = torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=True)
    return there.copy_(x, non_blocking=True)
