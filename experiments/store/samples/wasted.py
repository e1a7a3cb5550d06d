"""Wasted tokens: how much of a text that led nowhere only said again what stood there before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Tokens of a passage, the shortest tail, and the share of it that ends a passage seen before.
PASSAGE, SHORTEST, SHARE = 16, 100, 0.95


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
