"""Repetition: blocks back to back, many times, and how much of a text only says again what stood
there before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attention.errors import InvalidValue

#: Odd, so that no power of it vanishes among 64-bit numbers.
_BASE = np.uint64(0x9E3779B97F4A7C15)

#: Tokens of a passage, the shortest tail, and the share of it that ends a passage seen before.
PASSAGE, SHORTEST, SHARE = 16, 100, 0.95


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


def exact(tokens: Sequence[int]) -> int:
    """Tokens of the loop at the end, behind its first round: "L".

    The tail is periodic and has at least two periods; of all periods the one that leaves most
    behind its first counts. 0 where the text does not end in a loop.
    """
    backwards = list(tokens)[::-1]
    # How far a text agrees with itself some places on is its Z function.
    alike = _z(backwards)
    return max((held for period, held in enumerate(alike) if period and held >= period), default=0)


def tolerant(tokens: Sequence[int]) -> int:
    """Tokens of the longest tail of at least 100 of which 95% end a 16-gram seen before: "T".

    So loops that change a word now and then count, too. 0 where there is no such tail.
    """
    seen: set[tuple[int, ...]] = set()
    again = np.zeros(len(tokens), dtype=np.int64)
    for end in range(PASSAGE, len(tokens) + 1):
        passage = tuple(tokens[end - PASSAGE : end])
        again[end - 1] = passage in seen
        seen.add(passage)
    lengths = np.arange(1, len(tokens) + 1)
    enough = np.cumsum(again[::-1]) >= SHARE * lengths - 1e-9
    enough[: SHORTEST - 1] = False
    return int(lengths[enough].max(initial=0))


def _z(text: Sequence[int]) -> list[int]:
    """For each place, how many tokens from there on equal those at the beginning; 0 at 0."""
    n, found = len(text), [0] * len(text)
    left = right = 0  # the match that reaches furthest
    for at in range(1, n):
        length = min(right - at, found[at - left]) if at < right else 0
        while at + length < n and text[length] == text[at + length]:
            length += 1
        found[at] = length
        if at + length > right:
            left, right = at, at + length
    return found
