"""What a configuration is against a partner: lengths by clipped logs, cost of a solved problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recomputing.intervals import bootstrap_t, differs, of_cost_ratio, of_mean, sign_flips, swaps
from recomputing.means import grouped, mean
from recomputing.samples import Sample

Pair = tuple[Sample, Sample]

#: So many have to differ, and to be solved, before there is an interval.
SIX = 6


@dataclass(frozen=True)
class Reading:
    """How a store is read: the cap as times full attention's length, the bootstrap's seed."""

    factor: int | None
    seed: int

    @property
    def most(self) -> float:
        """Bound of the log of a ratio of lengths."""
        return math.log(self.factor) if self.factor else math.inf


def uncensored(pairs: Sequence[Pair]) -> list[Pair]:
    """Those whose partner was not cut."""
    return [(a, b) for a, b in pairs if b.status != "capped"]


def lengths(pairs: Sequence[Pair], reading: Reading) -> dict[str, Any]:
    """Tokens over tokens under full attention.

    Args:
        pairs: none that is censored.
        reading: how the store is read.
    """
    solved = [(a, b) for a, b in pairs if a.solved and b.solved]
    found: dict[str, Any] = {"solved_by_both": len(solved)}
    found |= length_ratio("length_ratio", pairs, reading)
    found |= length_ratio("length_ratio_solved", solved, reading)
    for way in ("finished", "capped", "stopped"):
        logs = [_log(pair, reading) for pair in _long(pairs) if pair[0].status == way]
        if logs:
            found[f"length_ratio_{way}"] = math.exp(mean(logs))
    its = sum(b.tokens for _, b in pairs)
    if its:
        found["length_ratio_of_sums"] = sum(a.tokens for a, _ in pairs) / its
    return found


def length_ratio(field: str, pairs: Sequence[Pair], reading: Reading) -> dict[str, Any]:
    """Exp of the mean over problems of the mean of its samples' logs; interval, p, how many."""
    groups = grouped(_long(pairs), lambda pair: pair[0].problem)
    if not groups:
        return {f"{field}_differs": 0}
    logs = [mean(_log(pair, reading) for pair in group) for group in groups]
    differing = sum(abs(log) > 1e-12 for log in logs)
    found: dict[str, Any] = {
        field: math.exp(mean(logs)),
        f"{field}_p": sign_flips(logs),
        f"{field}_differs": differing,
    }
    if differing >= SIX:
        low, high = bootstrap_t([(log, 1.0) for log in logs], of_mean, differing, reading.seed)
        found |= ends(field, max(low, -reading.most), min(high, reading.most))
    return found


def ends(field: str, low: float, high: float) -> dict[str, float | None]:
    """The interval of a ratio from that of its log; what has no end is None."""
    return {
        f"{field}_low": None if low == -math.inf else math.exp(low),
        f"{field}_high": None if high > 300 else math.exp(high),
    }


def _long(pairs: Sequence[Pair]) -> list[Pair]:
    return [(a, b) for a, b in pairs if a.tokens and b.tokens]


def _log(pair: Pair, reading: Reading) -> float:
    return float(np.clip(math.log(pair[0].tokens / pair[1].tokens), -reading.most, reading.most))


def keys_ratio(pairs: Sequence[Pair], reading: Reading) -> dict[str, Any]:
    """Keys that a solved problem takes, over those it takes under full attention.

    Args:
        pairs: none that is censored.
        reading: how the store is read.
    """
    field = "keys_read_per_solved_ratio"
    units = [
        tuple(math.fsum(column) for column in zip(*map(_numbers, group), strict=True))
        for group in grouped(pairs, lambda pair: pair[0].problem)
    ]
    if not units:
        return {f"{field}_differs": 0}
    differing = sum(map(differs, units))
    found: dict[str, Any] = {f"{field}_p": swaps(units), f"{field}_differs": differing}
    cost, solved, its_cost, its_solved = np.array(units).sum(axis=0)
    if not solved or not its_solved:
        return found
    found[field] = float((cost / solved) / (its_cost / its_solved))
    if differing >= SIX and min(solved, its_solved) >= SIX:
        found |= ends(field, *bootstrap_t(units, of_cost_ratio, differing, reading.seed))
    return found


def _numbers(pair: Pair) -> tuple[float, float, float, float]:
    one, its = pair
    return one.keys, float(one.solved), its.keys, float(its.solved)


def seconds(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Seconds and bytes held over those under full attention."""
    found: dict[str, Any] = {}
    for field, number in (("end_to_end_ratio", spent), ("cache_byte_sec_ratio", held)):
        ours = [(number(a), number(b)) for a, b in pairs]
        both = [(a, b) for a, b in ours if a is not None and b is not None]
        if both:
            found[field] = sum(a for a, _ in both) / sum(b for _, b in both)
    timed = [(a, b) for a, b in pairs if spent(a) is not None and spent(b) is not None]
    solved, its_solved = (sum(pair[i].solved for pair in timed) for i in (0, 1))
    if solved and its_solved:
        found["sec_per_solved_ratio"] = found["end_to_end_ratio"] * its_solved / solved
    return found


def spent(sample: Sample) -> float | None:
    """Seconds of a sample from its prompt on."""
    if sample.prefill is None or sample.decode is None:
        return None
    return sample.prefill + sample.decode


def held(sample: Sample) -> float | None:
    """Bytes held times seconds held."""
    return sample.byte_sec
