"""Penalties of how often a token occurs in a row's history."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.errors import check_number
from lil.penalties._history import StatefulPenalty, working_dtype


@dataclass(frozen=True, kw_only=True)
class Occurrences(StatefulPenalty):
    """It remembers each row's occurrences (B, V) as float32, of which at most `counted` count."""

    counted: ClassVar[float] = math.inf

    def begin(self, history: Tensor, vocabulary: int, /) -> Tensor:
        counts = torch.zeros(len(history), vocabulary, device=history.device)
        return self._count(counts, history, None)

    def fixed_shape(self, _device: torch.device, /) -> bool:
        return True

    def push(self, memory: Tensor, newest: Tensor, live: Tensor | None) -> Tensor:
        return self._count(memory, newest[:, None], live)

    def _count(self, counts: Tensor, tokens: Tensor, live: Tensor | None) -> Tensor:
        """`counts` after `tokens` (B, n) too, in the rows that are `live` (B,), None: all."""
        known = (tokens >= 0) & (tokens < counts.shape[1])
        if live is not None:
            known &= live[:, None]
        tokens = torch.where(known, tokens, 0)
        counts.scatter_add_(1, tokens, known.to(counts.dtype))
        if self.counted < math.inf:
            counts.scatter_(1, tokens, counts.gather(1, tokens).clamp(max=self.counted))
        return counts


@dataclass(frozen=True, kw_only=True)
class CountPenalty(Occurrences):
    """A token loses `strength` for each of its occurrences that count."""

    strength: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "a finite number; 0 is no penalty"
        self._resolve(strength=check_number("strength", self.strength, allowed))

    @property
    def neutral(self) -> bool:
        return self.strength == 0

    def apply(self, memory: Tensor, scores: Tensor) -> Tensor:
        wide = scores.to(working_dtype(scores))
        return torch.sub(wide, memory, alpha=self.strength).to(scores.dtype)
