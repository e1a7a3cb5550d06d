"""Degenerate repetition, after the LZ penalty's paper: one block, back to back, many times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def repeats(tokens: Sequence[int], times: int = 20) -> bool:
    """Whether some block of tokens, of any length from 1, stands at least `times` times in a row.

    A block of period p repeated m times is a stretch of (m - 1) p places at which a token equals
    the one p before it.
    """
    ids = np.asarray(tokens, dtype=np.int64)
    for period in range(1, len(ids) // times + 1):
        different = np.flatnonzero(ids[period:] != ids[:-period])
        edges = np.concatenate(([-1], different, [len(ids) - period]))
        if np.diff(edges).max() - 1 >= (times - 1) * period:
            return True
    return False
