"""Degenerate repetition, after the LZ penalty's paper: one block, back to back, many times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attention.errors import InvalidValue

#: Odd, so that no power of it vanishes among 64-bit numbers.
_BASE = np.uint64(0x9E3779B97F4A7C15)


def repeats(tokens: Sequence[int], times: int = 20) -> bool:
    """Whether some block of tokens, of any length from 1, stands at least `times` times in a row.

    The LZ penalty's paper (arXiv 2504.20131) calls any substring repeated at least 20 times a
    degenerate repetition, and does not say that the repeats touch; here they must.

    `times` blocks of period p in a row contain `times` - 1 blocks that begin at multiples of p. So
    for each period only the sums of n / p blocks are compared, n log n in all, and what looks
    repeated is then compared token by token. Periods that no stretch of recurring tokens is long
    enough for are left out, which for most texts is all of them.

    Args:
        tokens: token ids.
        times: repeats that count as degenerate; at 2 every period is compared in full.

    Raises:
        InvalidValue: `times` below 2.
    """
    if times < 2:
        raise InvalidValue("times", times, "at least 2")
    ids = np.asarray(tokens, dtype=np.int64)
    longest_period = _longest_period(ids, times)
    if not longest_period:
        return False
    powers = np.full(len(ids) + 1, _BASE)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)  # wraps at 2^64, as sums and products below
    sums = np.concatenate(([np.uint64(0)], np.cumsum((ids.astype(np.uint64) + 1) * powers[:-1])))
    for period in range(1, longest_period + 1):
        blocks = np.diff(sums[::period])
        alike = blocks[:-1] * powers[period] == blocks[1:]
        for first, last in _runs(alike, times - 2):
            # The run may begin and end inside the blocks beside those that are alike.
            around = ids[max(0, (first - 1) * period) : (last + 2) * period]
            longest = max(
                (b - a for a, b in _runs(around[period:] == around[:-period], 1)), default=0
            )
            if longest >= (times - 1) * period:
                return True
    return False


def _longest_period(ids: NDArray[np.int64], times: int) -> int:
    """A period above which no block can stand `times` times in a row; 0 if none can at all.

    In such a run every token but those of the first block stood at most a period before: so many
    tokens in a row have to. The longest stretch for a longer period bounds every shorter one.
    """
    order = np.argsort(ids, kind="stable")
    same = ids[order[1:]] == ids[order[:-1]]
    back = np.full(len(ids), len(ids) + 1)  # tokens back to where each one last stood
    back[order[1:][same]] = (order[1:] - order[:-1])[same]
    period = len(ids) // times
    while period:
        longest = max((end - start for start, end in _runs(back <= period, 1)), default=0)
        if longest >= (times - 1) * period:
            break
        period = min(period - 1, longest // (times - 1))
    return period


def _runs(flags: NDArray[np.bool_], least: int) -> list[tuple[int, int]]:
    """[start, end) of the stretches of at least `least` trues; with 0, the whole is one."""
    if not least:
        return [(0, len(flags))]
    edges = np.concatenate(([-1], np.flatnonzero(~flags), [len(flags)]))
    starts, ends = edges[:-1] + 1, edges[1:]
    long = ends - starts >= least
    return list(zip(starts[long].tolist(), ends[long].tolist(), strict=True))
