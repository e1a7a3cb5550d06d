"""OpenAI's frequency penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.errors import InvalidValue
from lil.penalties._counts import add_counts, counted
from lil.penalties._history import HistoryPenalty, working_dtype


@dataclass(frozen=True, kw_only=True)
class FrequencyPenalty(HistoryPenalty[Tensor]):
    """Frequency penalty: a token loses `strength` for each time it has occurred (OpenAI's API).

    As OpenAI documents it, over generated tokens; `include_prompt` adds the prompt.

    Args:
        strength: score units an occurrence; 0 changes nothing, below 0 encourages repetition.

    Raises:
        InvalidValue: `strength` is not a finite number.
    """

    strength: float = 0.5

    name: ClassVar[str] = "frequency"

    def __post_init__(self) -> None:
        if not math.isfinite(self.strength):
            raise InvalidValue("strength", self.strength, "a finite number; 0 is no penalty")

    @property
    def neutral(self) -> bool:
        return self.strength == 0

    def _begin(self, history: Tensor, vocabulary: int, /) -> Tensor:
        return counted(history, vocabulary)

    def _push(self, memory: Tensor, newest: Tensor, live: Tensor | None) -> Tensor:
        add_counts(memory, newest[:, None], live)
        return memory

    def _penalise(self, memory: Tensor, scores: Tensor) -> Tensor:
        wide = scores.to(working_dtype(scores))
        return torch.sub(wide, memory, alpha=self.strength).to(scores.dtype)
