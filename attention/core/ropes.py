"""Turning keys and queries that are already rotated, with the model's own cos and sin."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from attention.core import devices
from attention.core.kernels import accumulator
from attention.errors import InvalidValue

Turn = tuple[Tensor, Tensor]
Make = Callable[[Tensor | range, Tensor], Turn]


def follows_length(kind: Any) -> bool:
    """Whether frequencies of an embedding of this kind follow the length of a text."""
    return isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")


class Rope:
    """The model's rotary module, asked for cos and sin so that its scaling is honoured.

    A turn from position p to q undoes exactly what the model did at p, including rounding of its
    cos and sin and the attention factor of YaRN, and then does what it would do at q.

    Where a model has one embedding per kind of layer it is that of full attention: the model's own
    sliding layers are never turned.

    Args:
        module: the rotary embedding, called as module(x, position_ids); None if the model has none.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self._known: dict[Hashable, Turn] = {}
        kind = getattr(module, "rope_type", None)
        self.layer_type = "full_attention" if isinstance(kind, dict) else None
        self.kind = kind.get(self.layer_type) if isinstance(kind, dict) else kind
        # gpt-oss gives the cosine of each once, the others once for either half of the pairs.
        table = "inv_freq" if self.layer_type is None else f"{self.layer_type}_inv_freq"
        frequencies = getattr(module, table, None)
        self.frequencies = None if frequencies is None else len(frequencies)

    def __deepcopy__(self, memo: Any) -> Rope:
        return self  # the module is the model's

    def require_fixed(self, method: str) -> None:
        """Refuse rotary embeddings that cannot turn a stored key."""
        kind = self.kind
        if not isinstance(kind, str):
            module = type(self.module).__name__
            raise InvalidValue("model", module, f"one rotary embedding, for {method}")
        if follows_length(kind):
            allowed = f"frequencies that do not change with length: {method} turns stored keys"
            raise InvalidValue("rope_type", kind, allowed)

    def angles(self, positions: Tensor | range, like: Tensor) -> Turn:
        """cos and sin at these positions, (B or 1, N) to (B or 1, 1, N, rotated part of D)."""
        # The model's dtype goes in, so that its rounding of cos and sin comes out.
        named = () if self.layer_type is None else (self.layer_type,)
        if isinstance(positions, range):
            positions = devices.put(positions, like.device)[None]
        cos, sin = self.module(like, positions, *named)
        if cos.shape[-1] == self.frequencies:
            cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
        wide = accumulator(like.dtype)
        cos, sin = (x.to(wide).unsqueeze(1).contiguous() for x in (cos, sin))
        return cos, sin

    def table(self, below: int, like: Tensor) -> Turn:
        """cos and sin at all positions below this many, (positions, rotated part of D) each."""
        cos, sin = self._once(self.angles, range(below), like, None)
        return cos[0, 0], sin[0, 0]

    def turn(
        self, start: Tensor | range, end: Tensor | range, like: Tensor, below: int | None = None
    ) -> Turn:
        """The rotation that takes a vector roped at `start` to what it would be at `end`.

        cos, and the sin that the other number of a pair is multiplied with, negative in the first
        half.

        Args:
            start, end: positions, (B or 1, N); a range, whose angles are computed once, where they
                are the same at every step and in every row.
            like: what is to be rotated, for its dtype and device.
            below: what all positions are below: their angles are then looked up in tables that grow
                with it. None to ask the model for them.
        """
        if below is not None and isinstance(end, range):
            return self._once(lambda at, like: self.turn(at, end, like), start, like, below, end)
        c0, s0 = self._once(self._undoing, start, like, below)
        c1, s1 = self._once(self.angles, end, like, below)
        first, second = (s1 * c0 + c1 * s0).chunk(2, dim=-1)
        return c1 * c0 - s1 * s0, torch.cat((-first, second), dim=-1)

    def _undoing(self, start: Tensor | range, like: Tensor) -> Turn:
        """The rotation from `start` to no rotation."""
        cos, sin = self.angles(start, like)
        size = cos * cos + sin * sin
        return cos / size, -sin / size

    def _once(
        self, make: Make, at: Tensor | range, like: Tensor, below: int | None, *what: range
    ) -> Turn:
        """What `make` gives at positions (B, N): a range's, and those below `below`, are stored."""
        places = at if isinstance(at, range) else "below"
        key = (make.__name__, *what, places, like.dtype, like.device)
        if isinstance(at, range):
            if key not in self._known:
                self._known[key] = make(at, like)
            return self._known[key]
        if below is None:
            return make(at, like)
        if key not in self._known or self._known[key][0].shape[2] < below:
            every = torch.arange(1 << max(below - 1, 1023).bit_length(), device=like.device)
            self._known[key] = make(every[None], like)
        cos, sin = self._known[key]
        return cos[0, 0, at][:, None], sin[0, 0, at][:, None]


class Still:
    """The rotary embedding of a layer whose keys have no position: it turns nothing."""

    rope_type = "default"

    def __call__(self, like: Tensor, positions: Tensor) -> Turn:
        """cos 1 and sin 0, (B, N, D)."""
        cos = like.new_ones(*positions.shape, like.shape[-1])
        return cos, torch.zeros_like(cos)


def rotate(x: Tensor, turn: Turn) -> Tensor:
    """Rotate (B, H, N, D) by a turn, computing in at least float32; x's dtype comes back."""
    cos, sin = turn
    n = cos.shape[-1]
    part = x[..., :n].to(cos.dtype)
    turned = (part * cos + part.roll(n // 2, -1) * sin).to(x.dtype)
    return turned if n == x.shape[-1] else torch.cat((turned, x[..., n:]), dim=-1)
