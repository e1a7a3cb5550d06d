"""When a stop fires on a stored trace, from the definitions of the detectors."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
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
    opened, ended = thinking(prompt, pieces)
    match detector.get("within"):
        case None:
            pieces = pieces[:ended]
        case "output":
            pass
        case within:
            raise NotImplementedError(f"within {within}")
    known = opened, ended
    match detector["name"]:
        case "guardian" if detector["codec"] == "deflate":
            return _guardian(detector, prompt, pieces)
        case "budget":
            tokens = detector["tokens"]
            return Fired(tokens, tokens) if len(pieces) >= tokens else None
        case "cycle":
            return _cycle(detector, pieces, known)
        case "recurrence":
            return _recurrence(detector, pieces, known)
        case "chopper":
            return _chopper(detector, signals[f"chopper-{detector['digest']}"], len(pieces))
        case "stall":
            name = f"stall-{detector['block']}-{detector['longest']}-{detector['before']}"
            return _stall(detector, signals[name], len(pieces))
        case "margin":
            return _margin(detector, signals[f"margin-{detector['end']}"], len(pieces))
        case name:
            raise NotImplementedError(f"detector {name}")


def thinking(prompt: bytes, pieces: Sequence[bytes]) -> tuple[int, int]:
    """How many tokens come before the thinking is open, and before the one that ends it.

    The first is beyond all tokens where nothing opens it, the second where nothing ends it.
    """
    ends = list(accumulate(map(len, pieces)))
    text = b"".join(pieces)
    after = [at + len(mark) for mark in (b"<think>", b"[THINK]") if (at := text.find(mark)) >= 0]
    opened = bisect_left(ends, min(after)) + 1 if after else len(pieces) + 1
    if max(prompt.rfind(b"<think>"), prompt.rfind(b"[THINK]")) > max(
        prompt.rfind(b"</think>"), prompt.rfind(b"[/THINK]")
    ):
        opened = 0
    over = [at + len(mark) for mark in (b"</think>", b"[/THINK]") if (at := text.find(mark)) >= 0]
    ended = bisect_left(ends, min(over)) if over else len(pieces)
    if prompt.rstrip().endswith((b"</think>", b"[/THINK]")):
        opened, ended = len(pieces) + 1, 0
    return opened, ended


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


def _cycle(
    detector: Mapping[str, Any], pieces: Sequence[bytes], known: tuple[int, int]
) -> Fired | None:
    """The first token at which the newest are one block, `repeats` times, `min_tokens` long."""
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    ids = np.array([numbers[piece] for piece in pieces])
    found = []
    for period in range(detector["min_period"], min(detector["max_period"], len(ids)) + 1):
        same = ids[period:] == ids[:-period]
        blocks = period * detector["repeats"]
        least = detector["min_tokens"]
        for needed, (start, stop) in _by_place(detector, least, known, len(ids)):
            end = first_run(same, max(blocks, needed) - period, start - period, stop - period)
            found += [] if end is None else [end + period]
    return Fired(min(found), min(found)) if found else None


def _by_place(
    detector: Mapping[str, Any], least: int, known: tuple[int, int], tokens: int
) -> Iterator[tuple[int, tuple[int, int]]]:
    """How much repetition it takes, and from and up to which token: less while thinking goes on."""
    opened, ended = known
    yield max(least, detector.get("outside", 0)), (0, tokens)
    yield least, (opened, ended)


def _recurrence(
    detector: Mapping[str, Any], pieces: Sequence[bytes], known: tuple[int, int]
) -> Fired | None:
    """The first token with which `run` in a row end a passage that ended `before` times earlier."""
    k, times, often = detector["k"], Counter[tuple[bytes, ...]](), []
    for end in range(1, len(pieces) + 1):
        passage = tuple(pieces[max(end - k, 0) : end])
        often.append(end >= k and times[passage] >= detector["before"])
        times[passage] += end >= k
    found = []
    for needed, (start, stop) in _by_place(detector, detector["run"], known, len(pieces)):
        end = first_run(np.array(often, dtype=bool), needed, start, stop)
        found += [] if end is None else [end]
    return Fired(min(found), min(found)) if found else None


def first_run(
    same: np.ndarray[Any, Any], length: int, start: int = 0, stop: int | None = None
) -> int | None:
    """How many elements there are when `length` true ones in a row have come; None if never.

    Not fewer than `start`, nor more than `stop`.
    """
    stop = len(same) if stop is None else min(stop, len(same))
    if length <= 0:
        return max(0, start) if start <= stop else None
    breaks = np.concatenate(([-1], np.flatnonzero(~same), [len(same)]))
    come = np.maximum(breaks[:-1] + 1 + length, start)
    fits = np.flatnonzero(come <= np.minimum(breaks[1:], stop))
    return int(come[fits[0]]) if len(fits) else None


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
