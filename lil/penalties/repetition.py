"""The repetition penalty of CTRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.errors import check_number
from lil.penalties._counts import Occurrences
from lil.penalties._history import working_dtype


@dataclass(frozen=True, kw_only=True)
class RepetitionPenalty(Occurrences):
    """Repetition penalty: a seen token's score is divided, or if negative multiplied (CTRL).

    CTRL, arXiv 1909.05858, with the numbers of transformers' `RepetitionPenaltyLogitsProcessor`.
    That one counts prompt and padding as seen; here padding never is, and the prompt only on
    request.

    Args:
        penalty: 1 changes nothing, above 1 discourages seen tokens, below 1 encourages them.

    Raises:
        InvalidValue: `penalty` not above 0.
    """

    penalty: float = 1.2

    name: ClassVar[str] = "repetition"
    counted: ClassVar[float] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "a number above 0; 1 is no penalty"
        self._resolve(penalty=check_number("penalty", self.penalty, allowed, above=0))

    @property
    def neutral(self) -> bool:
        return self.penalty == 1

    def apply(self, memory: Tensor, scores: Tensor) -> Tensor:
        wide = scores.to(working_dtype(scores))
        changed = torch.where(wide < 0, wide * self.penalty, wide / self.penalty)
        return torch.where(memory > 0, changed, wide).to(scores.dtype)
