"""Choosing the next token: temperature, top-k, top-p, then one uniform number a token."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention.core import devices
from attention.errors import check_int, check_number


class NotFiniteError(FloatingPointError):
    """A row's scores hold NaN, or nothing but minus infinity."""

    def __init__(
        self, message: str = "the model's scores are not finite: no token can be chosen"
    ) -> None:
        super().__init__(message)


def row_stream(seed: int, item_id: str, sample_index: int) -> random.Random:
    """A row's own stream of uniform numbers, the same whatever batch it is decoded in."""
    key = json.dumps([seed, item_id, sample_index]).encode()
    return random.Random(int.from_bytes(hashlib.sha256(key).digest(), "big"))


@dataclass(frozen=True)
class Sampler:
    """Temperature, then top-k, then top-p, then the inverse of the distribution in token-id order.

    With equal probabilities at an edge top-k and top-p keep the lower ids, so exactly `top_k`
    tokens remain (transformers keeps all that tie with the k-th).

    Args:
        temperature: divisor of the scores; 0 takes the largest score, the lower id among equals.
        top_k: tokens kept; None keeps all.
        top_p: the fewest most probable tokens whose probabilities add up to this are kept.

    Raises:
        InvalidValue: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        allowed = "0 (greedy) or a number above it"
        check_number("temperature", self.temperature, allowed, least=0, below=math.inf)
        if self.top_k is not None:
            check_int("top_k", self.top_k, 1, "at least 1, or None for all tokens")
        check_number("top_p", self.top_p, "above 0 and at most 1", above=0, most=1)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def __call__(self, scores: Tensor, uniforms: Sequence[float]) -> Tensor:
        """Next tokens (B,) from scores (B, V) and one number in [0, 1) a row (none if greedy).

        Raises:
            FloatingPointError: a row's scores hold NaN, or nothing but minus infinity.
        """
        tokens, finite = self.draw(scores, uniforms)
        if not bool(finite.all()):
            raise NotFiniteError
        return tokens

    def reheated(
        self, scores: Tensor, uniforms: Sequence[float], heats: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """As `draw`, with another temperature in rows whose `heats` are above 0."""
        tokens, finite = self.draw(scores, uniforms)
        for heat in {*heats} - {0.0}:
            rows = [row for row, own in enumerate(heats) if own == heat]
            at = devices.put(rows, scores.device, torch.int64)
            hot = replace(self, temperature=heat)
            tokens[at], finite[at] = hot.draw(scores[at], [uniforms[row] for row in rows])
        return tokens, finite

    def draw(self, scores: Tensor, uniforms: Sequence[float] | Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens and whether their rows' scores were finite, (B,) each, without waiting."""
        if self.greedy:
            best, tokens = scores.max(dim=-1)
            return tokens, torch.isfinite(best)
        # float64: rounding in a sum over V probabilities must not decide a token.
        probs = torch.softmax(scores.double() / self.temperature, dim=-1)
        finite = torch.isfinite(probs.sum(dim=-1))
        if self.top_k is not None or self.top_p < 1:
            probs = self._truncate(probs)
        edges = probs.cumsum(dim=-1)
        if not isinstance(uniforms, Tensor):
            uniforms = devices.put(uniforms, edges.device, edges.dtype)
        # A float64 below 1 times the total rounds to less than the total, so the edge never
        # lies past the last token that has probability.
        target = uniforms[:, None] * edges[:, -1:]
        index = torch.searchsorted(edges, target, right=True)[:, 0]
        return index.clamp_(max=edges.shape[1] - 1), finite  # behind the end where not finite

    def _truncate(self, probs: Tensor) -> Tensor:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            ordered[:, self.top_k :].zero_()
        if self.top_p < 1:
            ordered = ordered / ordered.sum(dim=-1, keepdim=True)
            before = ordered.cumsum(dim=-1) - ordered
            ordered = ordered.masked_fill(~(before < self.top_p), 0)
        return torch.zeros_like(probs).scatter(-1, order, ordered)
