"""What is said of an exception, and what is done about memory that ran out."""

from __future__ import annotations

import gc


def message(error: Exception) -> str:
    """The error's kind and first line."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_out_of_memory(error: Exception) -> bool:
    """Whether the machine's or the device's memory ran out."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def free_memory(error: Exception) -> None:
    """Give back what a batch that did not fit has left behind."""
    import torch

    if is_out_of_memory(error):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
