"""How likely a model finds texts, read through a backend in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from attention import Backend


@torch.inference_mode()
def likelihoods(
    model: Any, backend: Backend, pairs: Sequence[tuple[list[int], list[int]]], most: int
) -> list[tuple[float, bool]]:
    """The log-likelihood of each continuation after its context, and whether greedy gives it.

    Everything is read as a prompt is, which every backend does densely.

    Args:
        model: a causal language model of transformers.
        backend: how it attends.
        pairs: token ids of contexts, of at least one token, and of what follows them.
        most: tokens that the model reads; longer rows lose their beginning.
    """
    rows = [[*context, *after][-most - 1 : -1] for context, after in pairs]
    width = max(map(len, rows))
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])  # masked: any id
    longest = max(1, *(len(after) for _, after in pairs))
    with backend.on(model) as cache:
        output = model(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0).to(model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=longest,
        )
    wide = torch.promote_types(output.logits.dtype, torch.float32)
    logits = cast(Tensor, output.logits.to(wide))
    found = []
    for of_row, row, (_, after) in zip(logits, rows, pairs, strict=True):
        told = after[-len(row) :]
        wanted = torch.tensor(told, device=logits.device, dtype=torch.int64)[:, None]
        scores = of_row[len(of_row) - len(told) :]
        greedy = bool((scores.argmax(-1, keepdim=True) == wanted).all())
        found.append((float(scores.log_softmax(-1).gather(-1, wanted).sum()), greedy))
    return found
