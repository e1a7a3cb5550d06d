"""The presence penalty over the newest tokens alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.errors import check_int, check_number
from lil.compression.matching import EMPTY
from lil.penalties._history import ScoreChange, StatefulPenalty, working_dtype


@dataclass(frozen=True, kw_only=True)
class PresenceWindowPenalty(StatefulPenalty):
    """Windowed presence penalty: a token among the last `window` loses `strength` (ours).

    The LZ penalty's ablation, without matches and recency. With the default strength a token loses
    what the LZ penalty takes at V = 151,936 and alpha 0.15 from a token at distance 256: 0.15 (log2
    151,936 - log2 256) = 1.38.

    Args:
        strength: score units; 0 changes nothing, below 0 encourages repetition.
        window: newest tokens that count.

    Raises:
        InvalidValue: `strength` is not a finite number, or `window` below 1.
    """

    strength: float = 1.38
    window: int = 512

    name: ClassVar[str] = "presence_window"

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "a finite number; 0 is no penalty"
        self._resolve(strength=check_number("strength", self.strength, allowed))
        self._resolve(window=check_int("window", self.window, 1, "at least 1 token"))

    @property
    def neutral(self) -> bool:
        return self.strength == 0

    def begin(self, history: Tensor, _vocabulary: int, /) -> Tensor:
        newest = history[:, -self.window :]
        missing = self.window - newest.shape[1]
        return torch.nn.functional.pad(newest, (missing, 0), value=EMPTY)

    def fixed_shape(self, _device: torch.device, /) -> bool:
        return True

    def push(self, memory: Tensor, newest: Tensor, live: Tensor | None) -> Tensor:
        shifted = torch.cat((memory[:, 1:], newest[:, None]), dim=1)
        return shifted if live is None else torch.where(live[:, None], shifted, memory)

    def apply(self, memory: Tensor, scores: Tensor) -> Tensor:
        known = (memory != EMPTY) & (memory < scores.shape[1])
        amounts = -self.strength * known.to(working_dtype(scores))
        if self.strength > 0:
            return self._lowered(scores, (memory, amounts))
        return self._changed(scores, ScoreChange(memory, amounts, known))
