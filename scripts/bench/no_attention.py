"""A model's forward without its attention: what is left is what no attention method can save."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from attention.patching.attention_op import CALL, Call
from attention.patching.compiled import CompiledStep
from experiments.bench import seconds

NAME = "lil_no_attention"


def no_attention(_module: Any, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """The query as the result, (B, H, T, D) to (B, T, H, D): nothing is read."""
    return query.transpose(1, 2), None


def no_mask(*_: Any, **__: Any) -> None:
    """No mask, as nothing is attended to."""


@contextmanager
def without_attention(model: Any) -> Iterator[None]:
    """Let `model` skip its attention inside the block; keys and values are still projected."""
    # Both are stateless and change no model until a config names them.
    AttentionInterface.register(NAME, no_attention)
    AttentionMaskInterface.register(NAME, no_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


class _NoAttention:
    """What a compiled step calls in place of a cache: the query is the result."""

    @staticmethod
    def attend(_layer: int, query: Tensor, *_: Any) -> Tensor:
        return query.transpose(1, 2)


@torch.inference_mode()
def rest_seconds(
    model: Any,
    rows: int,
    tokens: int = 1,
    step: CompiledStep | None = None,
    repeats: int = 9,
    untimed: int = 2,
) -> float:
    """Median seconds of a forward of (rows, tokens) ids without attention, scores of the last.

    Args:
        model: in evaluation mode.
        rows, tokens: B, T.
        step: the model's compiled step: where a single token is asked for, the faster one counts.
        repeats: timed forwards.
        untimed: forwards before them.
    """
    ids = torch.zeros(rows, tokens, dtype=torch.int64, device=model.device)

    def median(run: Callable[[], object]) -> float:
        times = [seconds(run, str(model.device)) for _ in range(untimed + repeats)]
        return statistics.median(times[untimed:])

    with without_attention(model):
        taken = median(lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1))
    if step is None or tokens > 1:
        return taken
    nothing: Any = _NoAttention()
    call = Call(nothing, ids)
    before = CALL.set(call)
    try:
        compiled = median(lambda: step.step(ids, ids))
    finally:
        CALL.reset(before)
    if call.error is not None:
        raise call.error
    return min(taken, compiled)
