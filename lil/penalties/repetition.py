"""The repetition penalty of CTRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor

from attention.errors import check_number
from lil.penalties._history import Penalty, emptied, working_dtype


@dataclass(frozen=True, kw_only=True)
class RepetitionPenalty(Penalty):
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
        super().__post_init__()
        allowed = "a number above 0; 1 is no penalty"
        self._resolve(penalty=check_number("penalty", self.penalty, allowed, above=0))

    @property
    def neutral(self) -> bool:
        return self.penalty == 1

    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        if self.neutral or not history.shape[1]:
            return scores
        process = RepetitionPenaltyLogitsProcessor(float(self.penalty))
        wide = scores.to(working_dtype(scores))
        return widened(process, history, lengths, wide).to(scores.dtype)


def widened(process: LogitsProcessor, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
    """`process` of scores (B, V) with one column more for ids beyond them and for `EMPTY`."""
    V, history = scores.shape[1], emptied(history, lengths)
    known = (history >= 0) & (history < V)
    wide = torch.nn.functional.pad(scores, (0, 1))
    result: Tensor = process(history.masked_fill(~known, V), wide)
    return result[:, :V]
