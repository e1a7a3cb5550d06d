"""Oracle of CTRL's repetition penalty: what has occurred becomes less likely by a factor.

CTRL divides the score, which makes a token likelier where the score is negative; it is multiplied
there, as every implementation in use does.
"""

from __future__ import annotations

from collections.abc import Sequence


def penalise(logits: Sequence[float], history: Sequence[int], *, penalty: float) -> list[float]:
    """New logits (V,)."""
    new = list(logits)
    for token in set(history):
        if token < len(new):
            new[token] = new[token] * penalty if new[token] < 0 else new[token] / penalty
    return new
