"""Penalties: objects that change the raw logits of one sequence before its next token is chosen."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Penalty"]


@runtime_checkable
class Penalty(Protocol):
    """A transformers `LogitsProcessor` that can be cloned.

    A penalty given to `decode` is a template: each row works on its own `clone()`, so a penalty may
    keep state. It is called once a token, on prompt plus everything generated, with no padding; the
    first call's width is the prompt and every later call is one token wider.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """New scores. `input_ids` (1, n) int64; `scores` (1, V), float32 or the model's float64."""
        ...

    def clone(self) -> Penalty:
        """An independent penalty with the same parameters and no history."""
        ...
