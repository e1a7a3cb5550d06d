"""Oracle of OpenAI's presence penalty: one amount off each token that has occurred."""

from __future__ import annotations

from collections.abc import Sequence


def penalise(logits: Sequence[float], history: Sequence[int], *, strength: float) -> list[float]:
    """New logits (V,): mu_j - [c_j > 0] * strength, c_j how often token j occurs in the history."""
    return [
        logit - (strength if list(history).count(token) > 0 else 0.0)
        for token, logit in enumerate(logits)
    ]
