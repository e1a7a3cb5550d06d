"""How often each token stands in a row's history."""

from __future__ import annotations

import torch
from torch import Tensor


def counted(history: Tensor, vocabulary: int, /) -> Tensor:
    """Occurrences (B, V) of each token in `history` (B, n), other ids left out, as float32."""
    counts = torch.zeros(len(history), vocabulary, device=history.device)
    add_counts(counts, history)
    return counts


def add_counts(counts: Tensor, tokens: Tensor, live: Tensor | None = None) -> None:
    """Count `tokens` (B, n) too, in the rows that are `live` (B,), None: all."""
    known = (tokens >= 0) & (tokens < counts.shape[1])
    if live is not None:
        known &= live[:, None]
    counts.scatter_add_(1, torch.where(known, tokens, 0), known.to(counts.dtype))
