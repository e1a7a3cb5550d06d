"""Oracle of OpenAI's frequency penalty: an amount off a token for each time it has occurred."""

from __future__ import annotations

from collections.abc import Sequence


def penalise(logits: Sequence[float], history: Sequence[int], *, strength: float) -> list[float]:
    """New logits (V,): mu_j - c_j * strength, c_j how often token j occurs in the history."""
    return [logit - list(history).count(token) * strength for token, logit in enumerate(logits)]
