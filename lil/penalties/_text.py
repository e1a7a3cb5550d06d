"""Penalties that transformers computes from a row's whole history."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

from lil.compression.matching import EMPTY
from lil.penalties._history import HistoryPenalty, right_aligned


@dataclass(frozen=True, kw_only=True)
class TextPenalty(HistoryPenalty[Tensor]):
    """Remembers each row's history (B, n), right-aligned with `EMPTY` before short rows."""

    def _begin(self, history: Tensor, _vocabulary: int, /) -> Tensor:
        return history

    def _push(self, memory: Tensor, newest: Tensor, live: Tensor | None) -> Tensor:
        history = torch.cat((memory, newest[:, None]), dim=1)
        if live is None:
            return history
        kept = torch.cat((torch.ones_like(memory, dtype=torch.bool), live[:, None]), dim=1)
        return right_aligned(history, kept)


def widened(process: LogitsProcessor, history: Tensor, scores: Tensor) -> Tensor:
    """What `process` makes of `scores` (B, V) where `history` holds ids the scores do not reach.

    Embeddings may have more rows than the model has scores, and before short rows stands `EMPTY`.
    For `process` the scores have a column for each of these ids, and one no token has for `EMPTY`:
    transformers' processors left unknown ids out only after version 5.3.
    """
    V = scores.shape[1]
    largest = int(history.max()) if history.numel() else EMPTY
    spare = max(V, largest + 1)
    wide = torch.nn.functional.pad(scores, (0, spare + 1 - V))
    result: Tensor = process(history.masked_fill(history == EMPTY, spare), wide)
    return result[:, :V]
