"""When a stop fires on a stored trace, from the definitions of the detectors."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Fired(NamedTuple):
    """After how many generated tokens a verdict came, and how many of them it keeps."""

    step: int
    kept: int


def fired(
    detector: Mapping[str, Any],
    prompt: bytes,
    pieces: Sequence[bytes],
    signals: Mapping[str, Any],
) -> Fired | None:
    """The verdict of a detector on a sequence, None without one.

    Raises:
        NotImplementedError: a detector that this program has no definition of.
    """
    match detector["name"]:
        case "guardian" if detector["codec"] == "deflate":
            return _guardian(detector, prompt, pieces)
        case "budget":
            tokens = detector["tokens"]
            return Fired(tokens, tokens) if len(pieces) >= tokens else None
        case "cycle":
            return _cycle(detector, pieces)
        case "recurrence":
            return _recurrence(detector, pieces)
        case "chopper":
            return _chopper(detector, signals[f"chopper-{detector['digest']}"], len(pieces))
        case "stall":
            name = f"stall-{detector['block']}-{detector['longest']}-{detector['before']}"
            return _stall(detector, signals[name], len(pieces))
        case "margin":
            return _margin(detector, signals[f"margin-{detector['end']}"], len(pieces))
        case name:
            raise NotImplementedError(f"detector {name}")


def _guardian(detector: Mapping[str, Any], prompt: bytes, pieces: Sequence[bytes]) -> Fired | None:
    """Every f tokens: did prompt and output together grow by rate * f bytes, compressed?"""
    f = detector["f"]
    threshold = round(detector["rate"] * f, 9)
    before = len(zlib.compress(prompt, 6))
    for step in range(f, len(pieces) + 1, f):
        size = len(zlib.compress(prompt + b"".join(pieces[:step]), 6))
        if size - before < threshold:
            return Fired(step, step)
        before = size
    return None


def _cycle(detector: Mapping[str, Any], pieces: Sequence[bytes]) -> Fired | None:
    """The first token at which the newest are one block, `repeats` times, `min_tokens` long."""
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    ids = np.array([numbers[piece] for piece in pieces])
    first = None
    for period in range(detector["min_period"], min(detector["max_period"], len(ids)) + 1):
        needed = max(period * detector["repeats"], detector["min_tokens"]) - period
        end = first_run(ids[period:] == ids[:-period], needed)
        if end is not None and (first is None or end + period < first):
            first = end + period
    return None if first is None else Fired(first, first)


def _recurrence(detector: Mapping[str, Any], pieces: Sequence[bytes]) -> Fired | None:
    """The first token with which `run` in a row end a passage that ended `before` times earlier."""
    k, times, often = detector["k"], Counter[tuple[bytes, ...]](), []
    for end in range(1, len(pieces) + 1):
        passage = tuple(pieces[max(end - k, 0) : end])
        often.append(end >= k and times[passage] >= detector["before"])
        times[passage] += end >= k
    end = first_run(np.array(often), detector["run"])
    return None if end is None else Fired(end, end)


def first_run(same: np.ndarray[Any, Any], length: int) -> int | None:
    """How many elements there are when `length` true ones in a row have come; None if never."""
    if length <= 0:
        return 0
    breaks = np.concatenate(([-1], np.flatnonzero(~same), [len(same)]))
    long = np.flatnonzero(np.diff(breaks) - 1 >= length)
    return int(breaks[long[0]]) + 1 + length if len(long) else None


def _stall(
    detector: Mapping[str, Any], signal: Sequence[Sequence[float]], tokens: int
) -> Fired | None:
    """Similarities above what is expected, added up and never below 0; known a token later."""
    total = 0.0
    for end, similarity in signal:
        total = max(0.0, total + similarity - detector["drift"])
        if total >= detector["level"] and end < tokens:
            return Fired(int(end) + 1, int(end) + 1)
    return None


def _margin(
    detector: Mapping[str, Any], signal: Sequence[Sequence[float]], tokens: int
) -> Fired | None:
    """The first narrow margin; known a token later, which is dropped."""
    narrow = (int(end) for end, margin in signal if margin < detector["below"] and end < tokens)
    end = next(narrow, None)
    return None if end is None else Fired(end + 1, end)


def _chopper(
    detector: Mapping[str, Any], signal: Sequence[Sequence[float]], tokens: int
) -> Fired | None:
    """Enough hot chunks in a row; known one token after the chunk that decided."""
    long = short = kept = last = 0
    for at, p in signal:
        end = int(at)
        if end + 1 > tokens:
            return None
        size, last = end - last, end
        if not p > detector["threshold"]:
            long = short = 0
            kept = end
            continue
        long, short = (long + 1, 0) if size >= detector["short"] else (0, short + 1)
        if long >= detector["long_streak"] or short >= detector["short_streak"]:
            return Fired(end + 1, kept)
    return None
