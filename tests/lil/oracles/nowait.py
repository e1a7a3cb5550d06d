"""NoWait: tokens that are out."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def penalise(
    scores: Sequence[float],
    history: Sequence[int],  # noqa: ARG001
    words: Collection[str],  # noqa: ARG001
    tokens: Collection[int],
) -> list[float]:
    """Scores in which nobody can choose `tokens`."""
    return [-math.inf if token in tokens else score for token, score in enumerate(scores)]
