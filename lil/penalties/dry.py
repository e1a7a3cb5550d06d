"""DRY: do not repeat yourself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.errors import check_int, check_number
from lil.compression.matching import EMPTY, Matcher
from lil.penalties._history import StatefulPenalty, token_ids, working_dtype


@dataclass(frozen=True, kw_only=True)
class DRYPenalty(StatefulPenalty):
    """DRY: a token loses the more, the longer the repetition it would go on with (p-e-w's sampler).

    Where the history's last k >= allowed_length tokens stand earlier too, the token that followed
    them there loses multiplier * base^(k - allowed_length); the longest such match decides. The
    rule is that of text-generation-webui, pull request 5677. As there, no match contains a sequence
    breaker, and a breaker is never penalised for following one. Breakers there are texts; here
    token ids.

    Args:
        multiplier: score units for a match of `allowed_length`; 0 changes nothing.
        base: growth of the penalty a token.
        allowed_length: the shortest match that is penalised, in tokens.
        sequence_breakers: ids of tokens at which matches end, such as a newline or a name.
        longest: tokens of a match that are counted.

    Raises:
        InvalidValue: a parameter out of range.
    """

    multiplier: float = 0.8
    base: float = 1.75
    allowed_length: int = 2
    sequence_breakers: Sequence[int] = ()
    longest: int = 50

    name: ClassVar[str] = "dry"

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "0 (no penalty) or a number above it"
        least = check_int("allowed_length", self.allowed_length, 1, "at least 1 token")
        longest = f"at least allowed_length = {least} tokens"
        self._resolve(
            multiplier=check_number("multiplier", self.multiplier, allowed, least=0),
            base=check_number("base", self.base, "at least 1", least=1),
            allowed_length=least,
            longest=check_int("longest", self.longest, least, longest),
            sequence_breakers=token_ids("sequence_breakers", self.sequence_breakers),
        )

    @property
    def neutral(self) -> bool:
        return self.multiplier == 0

    def begin(self, history: Tensor, _vocabulary: int, /) -> Matcher:
        matcher = Matcher(
            len(history), None, self.longest, self.sequence_breakers, device=history.device
        )
        matcher.load(history)
        return matcher

    def apply(self, memory: Matcher, scores: Tensor) -> Tensor:
        tokens, lengths = memory.tokens[:, 1:], memory.lengths[:, :-1]
        known = (tokens != EMPTY) & (tokens < scores.shape[1]) & ~memory.breaks(tokens)
        excess = (lengths - self.allowed_length).to(working_dtype(scores))
        # Of a token's matches the longest leaves the least score.
        amounts = -self.multiplier * self.base**excess
        return self._lowered(scores, (tokens, torch.where(known & (excess >= 0), amounts, 0)))
