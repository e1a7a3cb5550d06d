"""How positions turn keys and queries, from a header's values to transformers' parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.grid.gguf.header import Unconvertible
from experiments.grid.gguf.values import Values

#: Reads a small tensor of a name and a length; None where the file has none.
Read = Callable[[str, int], "np.ndarray[Any, Any] | None"]

#: Factors of frequencies as files of Llama 3.1 and later have them, and of Phi-3's two lengths.
FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"

# What Llama 3.1 was stretched by, but for the factor: its published config.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192


def plain(values: Values, theta: float) -> dict[str, Any]:
    """Turns as they are or stretched by what the values name: linear, or YaRN.

    Args:
        values: of the header; those of the rope are taken.
        theta: the base.

    Raises:
        Unconvertible: a stretch of another kind, or one that is not fully said.
    """
    kind = values.take("rope.scaling.type", "none")
    if kind == "none":
        # Written beside no kind by some; without one they say nothing.
        values.expect("rope.scaling.factor", 1.0)
        values.take("rope.scaling.original_context_length")
        return {"rope_type": "default", "rope_theta": theta}
    if kind not in ("linear", "yarn"):
        raise Unconvertible(f"its positions are stretched by {str(kind)[:40]!r}")
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
    found["factor"] = values.number("rope.scaling.factor")
    if kind == "linear":
        values.take("rope.scaling.original_context_length")
        return found
    found["original_max_position_embeddings"] = values.whole("rope.scaling.original_context_length")
    for name in ("beta_fast", "beta_slow"):
        if f"rope.scaling.yarn_{name}" in values:
            found[name] = values.number(f"rope.scaling.yarn_{name}")
    values.expect("rope.scaling.attn_factor", 1.0)
    return found


def llama(values: Values, theta: float, turned: int, read: Read) -> dict[str, Any]:
    """As `plain`, or as Llama 3.1, of which a file says only each frequency's factor.

    Args:
        values, theta: as there.
        turned: dimensions of a head that are turned.
        read: a tensor of the file.

    Raises:
        Unconvertible: as there, or factors that are not Llama 3.1's.
    """
    found = plain(values, theta)
    factors = read(FREQUENCIES, turned // 2)
    if factors is None or bool(np.all(factors == 1)):
        return found
    factor = float(factors.max())
    wanted = _llama_factors(theta, turned, factor)
    if found["rope_type"] != "default" or not np.allclose(factors, wanted, rtol=1e-4):
        raise Unconvertible(f"its {FREQUENCIES} are no factors of Llama 3.1")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def _llama_factors(theta: float, turned: int, factor: float) -> np.ndarray[Any, Any]:
    """What each wavelength is stretched by: short ones not at all, long ones by all of it."""
    lengths = 2 * math.pi * theta ** (np.arange(0, turned, 2) / turned)
    share = np.clip((_ORIGINAL / lengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    return 1 / ((1 - share) / factor + share)


def longrope(values: Values, theta: float, turned: int, read: Read) -> dict[str, Any]:
    """As `plain` without a stretch, or with two sets of factors, below and beyond a length.

    Args:
        values, theta, turned, read: as `llama`.

    Raises:
        Unconvertible: one set without the other, or another stretch.
    """
    long, short = read(LONG, turned // 2), read(SHORT, turned // 2)
    original = values.whole("rope.scaling.original_context_length", 0, least=0)
    if long is None and short is None:
        values.expect("rope.scaling.attn_factor", 1.0)
        found = plain(values, theta)
        if found["rope_type"] != "default":
            raise Unconvertible(f"its positions are stretched by {found['rope_type']!r}")
        return found
    if long is None or short is None or not original:
        raise Unconvertible("its rope factors are there for one length only")
    values.expect("rope.scaling.type", "longrope")
    values.take("rope.scaling.factor")  # the lengths say the same
    return {
        "rope_type": "longrope",
        "rope_theta": theta,
        "long_factor": long.tolist(),
        "short_factor": short.tolist(),
        "original_max_position_embeddings": original,
        "attention_factor": values.number("rope.scaling.attn_factor", 1.0),
    }
