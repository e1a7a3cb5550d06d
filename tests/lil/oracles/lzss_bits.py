"""Oracle of `lzss_bits`: greedy parse into literals and matches, and the code length in bits.

A match of length l at distance d costs log2 d + log2 l + 1 bits, a literal log2 V + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

Literal = tuple[int]
Match = tuple[int, int]  # (d, l)


def longest_match(tokens: Sequence[int], i: int, window: int, longest: int) -> Match | None:
    """(d, l) of the longest repetition which starts at index i; of equal ones the nearest."""
    best: Match | None = None
    for d in range(1, min(i, window) + 1):
        length = 0
        while (
            i + length < len(tokens)
            and length < longest
            and tokens[i - d + length] == tokens[i + length]
        ):
            length += 1
        if length >= 1 and (best is None or length > best[1]):
            best = d, length
    return best


def parse(tokens: Sequence[int], *, window: int, longest: int) -> list[Literal | Match]:
    """Greedy from the left: the longest match within the window, else a literal."""
    phrases: list[Literal | Match] = []
    i = 0
    while i < len(tokens):
        match = longest_match(tokens, i, window, longest)
        phrases.append((tokens[i],) if match is None else match)
        i += 1 if match is None else match[1]
    return phrases


def bits(parsed: Sequence[Literal | Match], V: int) -> float:
    """Code length of a parse, in bits."""
    total = 0.0
    for item in parsed:
        total += 1 + (log2(V) if len(item) == 1 else log2(item[0]) + log2(item[1]))
    return total
