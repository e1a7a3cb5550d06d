"""What a lean store has of a trace's checks: second differences, and seconds of every eighth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

#: Checks between two whose seconds are kept, and decimals of those.
APART, DECIMALS = 8, 4
CHECKED = ("tokens", "keys_read", "cache_bytes", "seconds", "read_sum", "dense_read_sum")
Run = dict[str, Any]


def rounded(trace: Mapping[str, Any]) -> Run:
    """The trace with the seconds that are kept of it."""
    found = dict(trace)
    checks = [dict(one) for one in trace["checks"]]
    for low, high in _spans(len(checks)):
        for end in (low, high):
            if checks[end]["seconds"] is not None:
                checks[end]["seconds"] = round(checks[end]["seconds"], DECIMALS)
        for at in range(low + 1, high):
            checks[at]["seconds"] = _between(checks, low, high, at)
    found["checks"] = checks
    if checks and trace["decode_sec"] == trace["checks"][-1]["seconds"]:
        found["decode_sec"] = checks[-1]["seconds"]
    for name in ("prefill_sec", "decode_sec"):
        if found[name] is not None:
            found[name] = round(found[name], DECIMALS)
    return found


def _spans(count: int) -> Iterator[tuple[int, int]]:
    """Checks whose seconds are kept, each with the next."""
    kept = [*range(0, count, APART)]
    if count and kept[-1] != count - 1:
        kept.append(count - 1)
    yield from pairwise(kept) if len(kept) > 1 else ((0, 0) for _ in kept)


def _between(checks: Sequence[Run], low: int, high: int, at: int) -> float | None:
    start, end = checks[low], checks[high]
    if start["seconds"] is None or end["seconds"] is None:
        return None
    share = (checks[at]["tokens"] - start["tokens"]) / (end["tokens"] - start["tokens"])
    return float(start["seconds"] + share * (end["seconds"] - start["seconds"]))


def _differences(values: Sequence[Any]) -> list[Any] | None:
    """Second differences of whole numbers; None for others."""
    if any(one is None or one != int(one) for one in values):
        return None
    whole = [int(one) for one in values]
    for _ in range(2):
        whole = [b - a for a, b in pairwise([0, *whole])]
    return whole


def told_checks(checks: Sequence[Run]) -> Run:
    """What is written of checks."""
    row: Run = {}
    for name in CHECKED:
        values = [one[name] for one in checks]
        told: Any = None
        if name == "seconds":
            kept = sorted({end for span in _spans(len(checks)) for end in span})
            told = [None if values[at] is None else round(values[at] * 10**DECIMALS) for at in kept]
        elif any(one is not None for one in values):
            told = _differences(values)
            row["exact." + name] = values if told is None else None
        row["check." + name] = told
    return row


def _sums(values: Sequence[int]) -> list[float]:
    """What has these second differences."""
    return [float(one) for one in accumulate(accumulate(values))]


def mean(trace: Mapping[str, Any]) -> float | None:
    """Mean of keys read, as its checks have it."""
    last = trace["checks"][-1] if trace["checks"] else None
    return last["read_sum"] / (last["tokens"] - 1) if last and last["tokens"] > 1 else None


def checks_of(row: Run) -> list[Run]:
    """The checks again."""
    tokens = [int(one) for one in _sums(row["check.tokens"] or ())]
    checks: list[Run] = [{"tokens": one} for one in tokens]
    for name in CHECKED[1:]:
        told = row["check." + name]
        if name == "seconds":
            kept = sorted({end for span in _spans(len(checks)) for end in span})
            for place, one in zip(kept, told, strict=True):
                checks[place]["seconds"] = None if one is None else one / 10**DECIMALS
            for low, high in _spans(len(checks)):
                for place in range(low + 1, high):
                    checks[place]["seconds"] = _between(checks, low, high, place)
            continue
        values = row.get("exact." + name) if told is None else _sums(told)
        for check, value in zip(checks, values or [None] * len(checks), strict=True):
            check[name] = value
    return [{name: check[name] for name in CHECKED} for check in checks]
