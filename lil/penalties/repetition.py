"""The repetition penalty of CTRL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from attention.errors import InvalidValue
from lil.penalties._history import working_dtype
from lil.penalties._text import TextPenalty, widened


@dataclass(frozen=True, kw_only=True)
class RepetitionPenalty(TextPenalty):
    """Repetition penalty: a seen token's score is divided, or if negative multiplied (CTRL).

    CTRL, arXiv 1909.05858, computed by transformers' `RepetitionPenaltyLogitsProcessor`. That one
    counts prompt and padding as seen; here padding never is, and the prompt only on request.

    Args:
        penalty: 1 changes nothing, above 1 discourages seen tokens, below 1 encourages them.

    Raises:
        InvalidValue: `penalty` not above 0.
    """

    penalty: float = 1.2

    name: ClassVar[str] = "repetition"

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise InvalidValue("penalty", self.penalty, "a number above 0; 1 is no penalty")

    @property
    def neutral(self) -> bool:
        return self.penalty == 1

    def _penalise(self, memory: Tensor, scores: Tensor) -> Tensor:
        if not memory.shape[1]:
            return scores
        process = RepetitionPenaltyLogitsProcessor(float(self.penalty))
        return widened(process, memory, scores.to(working_dtype(scores))).to(scores.dtype)
