"""No n-gram twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor

from attention.errors import check_int
from lil.penalties._history import Penalty
from lil.penalties._text import widened


@dataclass(frozen=True, kw_only=True)
class NoRepeatNGramPenalty(Penalty):
    """No-repeat n-gram: a token that would complete an n-gram seen before is out (fairseq).

    Its score becomes -inf. Computed by transformers' `NoRepeatNGramLogitsProcessor`, which counts
    prompt and padding; here padding never counts, and the prompt only on request.

    Args:
        ngram_size: n, in tokens; 0 changes nothing.

    Raises:
        InvalidValue: `ngram_size` below 0.
    """

    ngram_size: int = 20

    name: ClassVar[str] = "no_repeat_ngram"

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "0 (no penalty) or a length above it"
        self._resolve(ngram_size=check_int("ngram_size", self.ngram_size, 0, allowed))

    @property
    def neutral(self) -> bool:
        return self.ngram_size == 0

    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        if self.neutral or history.shape[1] < self.ngram_size:
            return scores
        return widened(NoRepeatNGramLogitsProcessor(self.ngram_size), history, lengths, scores)
