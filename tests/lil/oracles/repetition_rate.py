"""Oracle of the repetition rate: which sequences hold a block repeated back to back."""

from __future__ import annotations

from collections.abc import Sequence


def repeats(tokens: Sequence[int], times: int = 20) -> bool:
    """Whether some block of at least one token stands `times` times back to back, anywhere."""
    tokens = list(tokens)
    for period in range(1, len(tokens) // times + 1):
        for start in range(len(tokens) - times * period + 1):
            block = tokens[start : start + period]
            if tokens[start : start + times * period] == block * times:
                return True
    return False


def rate(sequences: Sequence[Sequence[int]], times: int = 20) -> float | None:
    """Share of the sequences with such a block; None of no sequences."""
    if not sequences:
        return None
    return sum(repeats(tokens, times) for tokens in sequences) / len(sequences)
