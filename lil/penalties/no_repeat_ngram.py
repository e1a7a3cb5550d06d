"""No n-gram twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.errors import check_int
from lil.compression.matching import EMPTY, Matcher
from lil.penalties._history import StatefulPenalty, working_dtype


@dataclass(frozen=True, kw_only=True)
class NoRepeatNGramPenalty(StatefulPenalty):
    """No-repeat n-gram: a token that would complete an n-gram seen before is out (fairseq).

    Its score becomes -inf. The rule of transformers' `NoRepeatNGramLogitsProcessor`, but padding
    never counts, and the prompt only on request.

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

    def begin(self, history: Tensor, _vocabulary: int, /) -> Matcher:
        matcher = Matcher(len(history), None, self.ngram_size - 1, device=history.device)
        matcher.load(history)
        return matcher

    def apply(self, memory: Matcher, scores: Tensor) -> Tensor:
        tokens, lengths = memory.tokens, memory.lengths
        if self.ngram_size > 1:
            # A token is out where the n - 1 before it are the newest.
            tokens, lengths = tokens[:, 1:], lengths[:, :-1]
        known = (tokens != EMPTY) & (tokens < scores.shape[1])
        out = known & (lengths >= self.ngram_size - 1)
        amounts = torch.zeros_like(tokens, dtype=working_dtype(scores))
        return self._lowered(scores, (tokens, amounts.masked_fill_(out, -torch.inf)))
