"""Penalties that transformers computes from a row's whole history."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor

from lil.penalties._history import emptied


def widened(process: LogitsProcessor, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
    """What `process` makes of `scores` (B, V) where `history` holds ids the scores do not reach.

    Embeddings may have more rows than the model has scores, and before short rows stands `EMPTY`.
    For `process` all these are one token more, which has a column of its own: transformers'
    processors left unknown ids out only after version 5.3.
    """
    V, history = scores.shape[1], emptied(history, lengths)
    known = (history >= 0) & (history < V)
    wide = torch.nn.functional.pad(scores, (0, 1))
    result: Tensor = process(history.masked_fill(~known, V), wide)
    return result[:, :V]
