"""Confidence: the model would answer now, and is sure of every token of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attention.errors import check_share
from lil.detectors.base.asking import Asking, Trial


@dataclass(frozen=True)
class Confidence(Asking):
    """Stops where the model is confident of a trial answer.

    DEER (Yang et al., arXiv 2504.15895): the geometric mean of the largest probability at each of
    its tokens is above `above`. Where we differ: no token is sampled, and the first one counts.

    Args:
        above: confidence that is enough; 1 never is.
        cue, at, words, tokens, on_stop, and errors: see `Asking`.
    """

    above: float = 0.95

    name: ClassVar[str] = "confidence"
    ladder = ("above", (0.9999, 0.999, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5))
    never: ClassVar[float] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("above", self.above)

    def number(self, trial: Trial) -> float:
        return math.exp(math.fsum(trial.best) / len(trial.best))

    def evidence(self, numbers: Sequence[float]) -> dict[str, float]:
        return {"confidence": numbers[-1], "above": self.above} if numbers[-1] > self.above else {}
