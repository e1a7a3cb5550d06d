"""Oracle of the windowed presence penalty: one amount off each token among the last ones."""

from __future__ import annotations

from collections.abc import Sequence


def penalise(
    logits: Sequence[float], history: Sequence[int], *, strength: float, window: int = 512
) -> list[float]:
    """New logits (V,): a token among the last `window`, once or often, loses `strength`."""
    recent = list(history)[max(len(history) - window, 0) :]
    return [logit - strength if token in recent else logit for token, logit in enumerate(logits)]
