"""The LZ penalty: the length of the code that LZSS would need for each next token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.errors import InvalidValue
from lil.matching import EMPTY, Matcher
from lil.penalties._history import HistoryPenalty, added, best, working_dtype

FORMULAS = ("derived", "printed", "rate")


@dataclass(frozen=True, kw_only=True)
class LZPenalty(HistoryPenalty[Matcher]):
    """LZ penalty: tokens that LZSS would code in few bits lose score (arXiv 2504.20131).

    The last `buffer` tokens are the buffer b, the `window` tokens before it the window w. Matches
    are suffixes of b in w, a candidate token follows on the right, and the newest token of w has
    distance 1. A token outside w is worth log2 V bits, one in w log2(distance of its nearest
    occurrence). Where the longest match has length l >= 1, the tokens after its occurrences at
    distance d >= 2 are worth the extension value instead, the nearest occurrence deciding. Scores
    change by alpha * (bits - log2 V), so unseen tokens keep theirs: at most `window` writes a row.

    Where we differ from the paper:
        - it writes a candidate in front of the buffer and matches prefixes; its case analysis holds
          only for the reading above;
        - it derives the extension value and then prints another one (eq. 14 and 15). `derived` is
          log2((l + 1)(d - 1) / (l d)) - 1. `printed` is log2(1 - (d - l + 1) / (l d)) - 1: the two
          agree only at d = l, and the printed one is -inf at l = 1 (here the value of l = 2 at the
          same d) and punishes longer matches less;
        - `rate` is what the authors' last runnable implementation computes (March 2025): over the
          last `window` tokens, buffer among them, every token from the ring's index `buffer` on is
          worth the least (log2(d + 1) + log2 L) / L of its occurrences, within 0 and log2 V; d is
          the occurrence's own distance, the newest token's being 1, and L is 1 + the tokens, at
          most `buffer`, that agree before it and at the ring's end. Nothing happens until the ring
          holds more than `buffer` tokens.

    What it does: derived extension values lie in [-1.96, -0.003], so the -5 of the paper cannot
    occur. At alpha 0.15 and V = 151,936 a token in the window loses 1.2 to 2.9 against an unseen
    one, nearly whatever the match length: it acts like a presence penalty over a window, with
    recency. The end of text and `</think>`, usually unseen, gain as much as any unseen token.
    `exempt` keeps the scores of such tokens as they are even when the window holds them; it does
    not take back what they gain while the others lose, so report runs with and without.

    Args:
        alpha: strength, score units per bit; 0 changes nothing.
        window: W, tokens that are searched (`rate`: the whole ring).
        buffer: Bf, newest tokens that are matched.
        formula: "derived", "printed" or "rate".
        exempt: token ids whose scores never change.

    Raises:
        InvalidValue: a parameter out of range.
    """

    alpha: float = 0.15
    window: int = 512
    buffer: int = 32
    formula: str = "derived"
    exempt: Sequence[int] = ()

    name: ClassVar[str] = "lz"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise InvalidValue("alpha", self.alpha, "0 (no penalty) or a number above it")
        if self.buffer < 1:
            raise InvalidValue("buffer", self.buffer, "at least 1 token")
        if self.formula not in FORMULAS:
            raise InvalidValue("formula", self.formula, "one of " + ", ".join(FORMULAS), FORMULAS)
        if self.window < 1:
            raise InvalidValue("window", self.window, "at least 1 token")
        if self.formula == "rate" and self.window <= self.buffer:
            allowed = f"more than buffer = {self.buffer} tokens: in `rate` it contains the buffer"
            raise InvalidValue("window", self.window, allowed)
        object.__setattr__(self, "exempt", tuple(int(token) for token in self.exempt))

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    def _begin(self, history: Tensor, _vocabulary: int, /) -> Matcher:
        size = self.window if self.formula == "rate" else self.buffer + self.window
        ring = Matcher(len(history), size, self.buffer, device=history.device)
        ring.load(history)
        return ring

    def _push(self, memory: Matcher, newest: Tensor, live: Tensor | None) -> Matcher:
        memory.push(newest, live)
        return memory

    def _penalise(self, memory: Matcher, scores: Tensor) -> Tensor:
        price = self._rates if self.formula == "rate" else self._codes
        bits, rank, found = price(memory, scores)
        tokens, V = memory.tokens[:, : self.window], scores.shape[1]
        found &= tokens < V  # embeddings may have more rows than the model has scores
        for token in self.exempt:
            found &= tokens != token
        rows, places = found.nonzero(as_tuple=True)
        tokens = tokens[rows, places]
        chosen = best(rows, tokens, rank[rows, places], V)
        rows, places, tokens = rows[chosen], places[chosen], tokens[chosen]
        return added(scores, rows, tokens, self.alpha * (bits[rows, places] - math.log2(V)))

    def _codes(self, ring: Matcher, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bits of the token at each place of the window (B, W), its rank, and whether it exists."""
        W, device, dtype = self.window, scores.device, working_dtype(scores)
        window = ring.tokens[:, :W]
        # Suffixes must lie in the window: a match at place e has at most e + 1 tokens.
        suffix = ring.lengths[:, :W].clamp(max=torch.arange(1, W + 1, device=device))
        longest = suffix.amax(dim=1, keepdim=True)
        # The token at place e + 1 extends the match at e; at distance 1 none follows in the window.
        extends = torch.zeros_like(window, dtype=torch.bool)
        extends[:, 1:] = (suffix[:, :-1] == longest) & (longest > 0)
        distance = torch.arange(W, 0, -1, device=device)
        d, length = (distance + 1).to(dtype), longest.clamp(min=1).to(dtype)
        bits = torch.where(extends, self._extension(length, d), distance.to(dtype).log2())
        # Any extension comes before any singleton, and near before far.
        rank = torch.where(extends, distance, distance + W)
        return bits, rank, window != EMPTY

    def _extension(self, length: Tensor, d: Tensor) -> Tensor:
        """Bits of a token that extends a match of `length` (B, 1) at distance `d` (W,) >= 2."""
        if self.formula == "printed":
            length = length.clamp(min=2)
            return (1 - (d - length + 1) / (length * d)).log2() - 1
        return ((length + 1) * (d - 1) / (length * d)).log2() - 1

    def _rates(self, ring: Matcher, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for `rate`, over the whole ring."""
        size, device, dtype = self.window, scores.device, working_dtype(scores)
        distance = torch.arange(size, 0, -1, device=device)
        length = torch.ones_like(ring.lengths)
        # A candidate has at least `buffer` tokens before it, so its match lies in the ring.
        length[:, 1:] += ring.lengths[:, :-1]
        length = length.to(dtype)
        bits = ((distance + 1).to(dtype).log2() + length.log2()) / length
        bits = bits.clamp(max=math.log2(scores.shape[1]))
        held = ring.tokens != EMPTY
        # Places are counted from the row's oldest token in the ring.
        place = torch.arange(size, device=device) - (size - held.sum(dim=1, keepdim=True))
        # Numbers from 0 on are ordered as their bit patterns are.
        return bits, bits.float().view(torch.int32).long(), held & (place >= self.buffer)
