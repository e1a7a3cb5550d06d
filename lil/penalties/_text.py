"""Penalties that transformers computes from a row's whole history."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor

from lil.compression.matching import EMPTY
from lil.penalties._history import emptied


def widened(process: LogitsProcessor, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
    """What `process` makes of `scores` (B, V) where `history` holds ids the scores do not reach.

    Embeddings may have more rows than the model has scores, and before short rows stands `EMPTY`.
    For `process` the scores have a column for each of these ids, and one no token has for `EMPTY`:
    transformers' processors left unknown ids out only after version 5.3.
    """
    V, history = scores.shape[1], emptied(history, lengths)
    largest = int(history.max()) if history.numel() else EMPTY
    spare = max(V, largest + 1)
    wide = torch.nn.functional.pad(scores, (0, spare + 1 - V))
    result: Tensor = process(history.masked_fill(history == EMPTY, spare), wide)
    return result[:, :V]
