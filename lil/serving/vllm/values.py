"""The names of what vLLM is told of sparse attention, and what a request says of it."""

from __future__ import annotations

from typing import Any

#: The part of `--additional-config` that is ours: the same values as in a request.
PART = "lil"

#: The method of the server's layers; in a request, "full" to be read in full.
ATTENTION = "attention"
FULL = "full"


def in_full(params: Any) -> bool:
    """Whether a request asks to be read in full.

    Args:
        params: its sampling parameters; None of requests that generate nothing.
    """
    given = getattr(params, "extra_args", None) or {}
    return bool(given.get(ATTENTION) == FULL)
