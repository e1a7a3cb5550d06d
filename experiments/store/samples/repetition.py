"""Repetition: blocks back to back, many times, and how much of a text only says again what stood
there before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from attention.errors import InvalidValue

#: Tokens of a passage, the shortest tail, and the share of it that ends a passage seen before.
PASSAGE, SHORTEST, SHARE = 16, 100, 0.95


def repeats(tokens: Sequence[int], times: int = 20) -> bool:
    """Whether some block of tokens, of any length from 1, occurs at least `times` times in a row.

    The LZ penalty's paper (arXiv 2504.20131) calls any substring repeated at least 20 times a
    degenerate repetition, and does not say that the repeats touch; here they must.
    """
    if times < 2:
        raise InvalidValue("times", times, "at least 2")
    ids = np.asarray(tokens, dtype=np.int64)
    for period in range(1, len(ids) // times + 1):
        # As many tokens in a row as these repeats have must equal the token one period before.
        differ = np.flatnonzero(ids[period:] != ids[:-period])
        edges = np.concatenate(([-1], differ, [len(ids) - period]))
        if np.diff(edges).max() - 1 >= (times - 1) * period:
            return True
    return False


def loops(tokens: Sequence[int], size: int = 30, times: int = 20) -> bool:
    """Whether some `size` tokens in a row stand at `times` places or more, which may overlap.

    The field's yardstick of loops in reasoning; it finds those that change a word now and then.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for at in range(len(tokens) - size + 1):
        passage = tuple(tokens[at : at + size])
        counts[passage] += 1
        if counts[passage] >= times:
            return True
    return False


def exact(tokens: Sequence[int]) -> int:
    """Tokens of the loop at the end, behind its first round: "L".

    The tail is periodic and has at least two periods; of all periods the one that leaves most
    behind its first counts. 0 where the text does not end in a loop.
    """
    backwards = list(tokens)[::-1]
    # How far a text agrees with itself some places on is its Z function.
    alike = _z(backwards)
    return max((n for period, n in enumerate(alike) if period and n >= period), default=0)


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
    n, lengths = len(text), [0] * len(text)
    left = right = 0  # the match that reaches furthest
    for at in range(1, n):
        length = min(right - at, lengths[at - left]) if at < right else 0
        while at + length < n and text[length] == text[at + length]:
            length += 1
        lengths[at] = length
        if at + length > right:
            left, right = at, at + length
    return lengths
