"""Texts that are known, read again by a model as they were decoded: a token a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import AttentionCache
from attention.core import devices


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Tensor]:
    """A forward's inputs for rows of tokens, padded on the left, (B, T) each."""
    width = max(map(len, rows))
    ids = np.zeros((len(rows), width), dtype=np.int64)  # padding is masked, so any id serves
    mask = np.zeros_like(ids)
    for r, row in enumerate(rows):
        ids[r, width - len(row) :] = row
        mask[r, width - len(row) :] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs["position_ids"] = (mask.cumsum(1) - 1).clip(min=0)
    return {name: devices.put(x, device, torch.int64) for name, x in inputs.items()}


@torch.inference_mode()
def reread(
    model: Any,
    cache: AttentionCache,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
) -> Iterator[tuple[AttentionCache, Tensor]]:
    """Read prompts at once, then the texts' tokens one a step, under the method of `cache`.

    Texts are sorted, the longest first. After each step it yields the cache and the scores (B, V)
    of the B texts that had a token left.

    Raises:
        FloatingPointError: scores are not finite.
    """
    lengths = np.array([len(text) for text in texts])
    tokens = np.zeros((len(texts), lengths[0]), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    rows = cache.new(prompts=[len(prompt) for prompt in prompts])
    _scores(model, rows, **left_padded(prompts, model.device))
    for step in range(lengths[0]):
        left = int((lengths > step).sum())
        if left < rows.batch_size:
            rows.select_rows(range(left))
        column = devices.put(tokens[:left, step], model.device, torch.int64)[:, None]
        position_ids = rows.seen[:, None].to(model.device)
        yield rows, _scores(model, rows, input_ids=column, position_ids=position_ids)


def _scores(model: Any, cache: AttentionCache, **inputs: Tensor) -> Tensor:
    """Scores (B, V) of the next token of each row."""
    output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    scores: Tensor = output.logits[:, -1]
    if not scores.amax(-1).isfinite().all():
        raise FloatingPointError("the model's scores are not finite")
    return scores
