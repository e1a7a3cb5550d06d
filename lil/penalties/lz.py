"""The LZ penalty: the length of the code that LZSS would need for each next token."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.core import devices
from attention.errors import InvalidValue, check_choice, check_int, check_number
from lil.compression.matching import EMPTY, Matcher
from lil.penalties._history import Penalty, ScoreChange, StatefulPenalty, token_ids, working_dtype
from lil.penalties._lz_rows import FORMULAS, LZParameters, LZRows, extension, fused_on


@dataclass(frozen=True, kw_only=True)
class LZPenalty(StatefulPenalty):
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

    What it does: at alpha 0.15 and V = 151,936 a token in the window loses 1.2 to 2.9 against an
    unseen one, nearly whatever the match length: it acts like a presence penalty over a window,
    with recency. The end of text and `</think>`, usually unseen, gain as much as any unseen token;
    `exempt` does not take that back, so report runs with and without.

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
        super().__post_init__()
        allowed = "0 (no penalty) or a number above it"
        check_choice("formula", self.formula, FORMULAS)
        self._resolve(
            alpha=check_number("alpha", self.alpha, allowed, least=0),
            window=check_int("window", self.window, 1, "at least 1 token"),
            buffer=check_int("buffer", self.buffer, 1, "at least 1 token"),
            exempt=token_ids("exempt", self.exempt),
        )
        if self.formula == "rate" and self.window <= self.buffer:
            allowed = f"more than buffer = {self.buffer} tokens: in `rate` it contains the buffer"
            raise InvalidValue("window", self.window, allowed)

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    def company(self, device: torch.device) -> Hashable:
        # Rows that are computed together have parameters of their own.
        return LZPenalty if fused_on(device) else self

    def fixed_shape(self, device: torch.device, /) -> bool:
        return fused_on(device)

    def begin_each(
        self, penalties: Sequence[Penalty], history: Tensor, vocabulary: int, /
    ) -> Matcher | LZRows:
        if not fused_on(history.device):
            return self.begin(history, vocabulary)
        return LZRows([p.parameters for p in penalties if isinstance(p, LZPenalty)], history)

    def begin(self, history: Tensor, _vocabulary: int, /) -> Matcher | LZRows:
        if fused_on(history.device):
            return LZRows([self.parameters] * len(history), history)
        ring = Matcher(len(history), self.parameters.size, self.buffer, device=history.device)
        ring.load(history)
        return ring

    @property
    def parameters(self) -> LZParameters:
        """What each row is penalised with."""
        size = self.window if self.formula == "rate" else self.buffer + self.window
        # Tokens beyond are in no vocabulary.
        exempt = tuple(token for token in self.exempt if token < 2**31)
        return LZParameters(self.alpha, size, self.buffer, self.formula, exempt)

    def apply(self, memory: Matcher | LZRows, scores: Tensor) -> Tensor:
        if isinstance(memory, LZRows):
            return memory.lower(self._writable(scores))
        if memory.tokens.shape[1] <= self.buffer:
            return scores  # nothing is before the buffer yet
        return (
            self._rates(memory, scores) if self.formula == "rate" else self._codes(memory, scores)
        )

    def _codes(self, ring: Matcher, scores: Tensor) -> Tensor:
        """New scores by `derived` or `printed`."""
        W, V = ring.tokens.shape[1] - self.buffer, scores.shape[1]
        dtype, full = working_dtype(scores), math.log2(V)
        tokens = ring.tokens[:, :W]
        priced = self._priced(tokens, scores)
        d = torch.arange(W, 0, -1, device=tokens.device).to(dtype)
        # The nearest occurrence has the fewest bits, and with them the least score.
        single = self.alpha * (d.log2() - full)

        # Suffixes must lie in the window: a match at place e has at most e + 1 tokens.
        room = torch.arange(1, W + 1, device=tokens.device, dtype=torch.int32)
        suffix = ring.lengths[:, :W].minimum(room)
        longest = suffix.amax(dim=1, keepdim=True).clamp_(min=1)  # of 0 nothing is extended
        # The token at place e + 1 extends the match at e; at distance 1 none follows in the window.
        extends = (suffix[:, :-1] == longest) & priced[:, 1:]
        extending, d = tokens[:, 1:], d[:-1]
        if devices.is_synchronous(tokens.device):
            # Few places extend a match in any row, and on a CPU the others cost time.
            places = extends.view(torch.uint8).amax(dim=0).nonzero()[:, 0]
            extending, d, extends = extending[:, places], d[places], extends[:, places]
        if self.formula == "printed":
            extends = _nearest(extending, extends)  # it has the most bits here
        extending_bits = extension(self.formula, longest.to(dtype), d)
        extended = self.alpha * (extending_bits - full)
        if V < W:  # a token whose nearest occurrence lies further back than V gains
            ones = ScoreChange(tokens, single.expand(tokens.shape), priced)
            return self._changed(scores, ones, ScoreChange(extending, extended, extends))
        # An extension has fewer bits than any single token.
        return self._lowered(scores, (tokens, single * priced), (extending, extended * extends))

    def _rates(self, ring: Matcher, scores: Tensor) -> Tensor:
        """New scores by `rate`."""
        size, dtype, full = ring.tokens.shape[1], working_dtype(scores), math.log2(scores.shape[1])
        # Places are counted from the row's oldest token in the ring.
        tokens = (ring.tokens != EMPTY).sum(dim=1, keepdim=True)
        place = torch.arange(size, device=scores.device) - (size - tokens)
        # At least `buffer` >= 1 tokens stand before a candidate, so its match lies in the ring.
        priced = (self._priced(ring.tokens, scores) & (place >= self.buffer))[:, 1:]
        length = (ring.lengths[:, :-1] + 1).to(dtype)
        d = torch.arange(size - 1, 0, -1, device=scores.device).to(dtype)
        bits = (((d + 1).log2() + length.log2()) / length).clamp(max=full)
        amounts = self.alpha * (bits - full) * priced
        return self._lowered(scores, (ring.tokens[:, 1:], amounts))

    def _priced(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Which of `tokens` are tokens whose scores may change."""
        # Embeddings may have more rows than the model has scores.
        priced = tokens == tokens.clamp(0, scores.shape[1] - 1)
        for token in self.exempt:
            priced &= tokens != token
        return priced


def _nearest(tokens: Tensor, wanted: Tensor) -> Tensor:
    """Those wanted (B, K), without all but the last of each token."""
    ordered, at = torch.where(wanted, tokens, EMPTY).sort(dim=1, stable=True)
    last = torch.ones_like(wanted)
    last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    return wanted & torch.empty_like(wanted).scatter_(1, at, last)
