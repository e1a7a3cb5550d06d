"""Speed of this package's parts."""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any

from attention.errors import InvalidValue
from lil.compression.codecs.deflate import from_scratch
from lil.compression.meter import Meter


def meter(tokens: int = 131_072, f: int = 250, repeats: int = 9, seed: int = 0) -> dict[str, Any]:
    """One Guardian check at `tokens` tokens: fed incrementally against compressed from scratch.

    The text is random lower-case letters, four bytes a token: it repeats little, which is the dear
    case for a compressor (the paper times random strings of 128k tokens at 34 ms). An incremental
    check feeds the last `f` tokens and reads the size; each repeat starts from the same state.
    Times are medians in milliseconds; both ways must give the same size.

    Raises:
        InvalidValue: `tokens` below `f`, or `f` or `repeats` below 1.
        RuntimeError: the two sizes differ.
    """
    if f < 1:
        raise InvalidValue("f", f, "at least 1")
    if tokens < f:
        raise InvalidValue("tokens", tokens, f"at least f = {f}")
    if repeats < 1:
        raise InvalidValue("repeats", repeats, "at least 1")
    rng = random.Random(seed)
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=4 * tokens)).encode()
    cut = 4 * (tokens - f)
    running = Meter("deflate").feed(text[:cut])
    before = running.snapshot()

    def check() -> int:
        return running.feed(text[cut:]).size()

    incremental, whole = [], []
    check()  # warm-up
    for _ in range(repeats):
        running.rollback(before)
        seconds, size = _timed(check)
        incremental.append(seconds)
        seconds, expected = _timed(lambda: from_scratch(text))
        whole.append(seconds)
        if size != expected:
            raise RuntimeError(f"incremental {size} bytes, from scratch {expected}")
    return {
        "tokens": tokens,
        "f": f,
        "original_bytes": len(text),
        "compressed_bytes": size,
        "incremental_ms": 1e3 * statistics.median(incremental),
        "from_scratch_ms": 1e3 * statistics.median(whole),
        "speedup": statistics.median(whole) / statistics.median(incremental),
        "repeats": repeats,
        "seed": seed,
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


def _timed(work: Callable[[], int]) -> tuple[float, int]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
