"""Suffix matches of growing sequences against their own past, one compare and one select a token.

A distance to the newest token names a position of the past, and the length of the match that ends
there is kept for every distance. A new token t moves every token one place further back; a match at
a distance then grows by one where the token at that distance is t, and is zero elsewhere: a step
costs O(size), whatever the length of the matches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention.core import devices

EMPTY = -1
"""Stands in a ring where a row has no token yet; equal to no token."""


class Matcher:
    """The last `size` tokens of each row and where their newest tokens occurred before.

    `tokens` (B, places) is right-aligned with `EMPTY` before short rows; there are as many places
    as the longest row needs, at most `size`. `lengths` (B, places): how many tokens up to and
    including this place equal as many newest tokens, at most `longest`; of the newest place itself
    it says nothing. A match may reach back over the ring's left edge; min(lengths, index + 1) lies
    inside.

    Args:
        rows: B.
        size: the most places, in tokens; None keeps every token.
        longest: cap of a match, in tokens.
        breakers: tokens that no match contains.
        device: of the tensors.
    """

    def __init__(
        self,
        rows: int,
        size: int | None,
        longest: int,
        breakers: Sequence[int] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.size, self.longest = size, longest
        self.tokens = torch.empty((rows, 0), dtype=torch.int64, device=device)
        self.lengths = torch.zeros_like(self.tokens, dtype=torch.int32)
        self._breakers = sorted(breakers)
        self._used = 0  # places in use: the tokens of the longest row, at most `size`

    def push(self, newest: Tensor, live: Tensor | None = None) -> None:
        """Append `newest` (B,), leaving rows alone where `live` (B,) is False."""
        newest = newest[:, None]
        old_tokens, old_lengths = self.tokens, self.lengths
        if self._used != self.size:
            if self._used == old_tokens.shape[1]:
                # Grown on the left: lengths belong to distances, so the new places are the oldest.
                # One on a CPU, where every place costs time; elsewhere shapes seldom change.
                synchronous = devices.is_synchronous(newest.device)
                spare = 1 if synchronous else max(64, self._used)
                more = (spare if self.size is None else min(spare, self.size - self._used), 0)
                old_tokens = torch.nn.functional.pad(old_tokens, more, value=EMPTY)
                old_lengths = torch.nn.functional.pad(old_lengths, more)
            self._used += 1
        tokens = torch.cat((old_tokens[:, 1:], newest), dim=1)
        matched = tokens == newest
        if self._breakers:
            matched &= ~self.breaks(newest)
        lengths = (old_lengths + 1).clamp_(max=self.longest).mul_(matched)
        if live is not None:
            tokens = torch.where(live[:, None], tokens, old_tokens)
            lengths = torch.where(live[:, None], lengths, old_lengths)
        self.tokens, self.lengths = tokens, lengths

    def load(self, history: Tensor) -> None:
        """Start anew from `history` (B, n), right-aligned with `EMPTY` before short rows.

        min(lengths, index + 1) is the same as after pushes of single tokens.
        """
        # A copy: a view would hold on to all of the history.
        self.tokens = (history if self.size is None else history[:, -self.size :]).clone()
        self.lengths = torch.zeros_like(self.tokens, dtype=torch.int32)
        n = self._used = self.tokens.shape[1]
        fit = self.tokens != EMPTY
        if self._breakers:
            fit &= ~self.breaks(self.tokens)
        running, looks = fit.clone(), devices.is_synchronous(fit.device)
        for back in range(min(n, self.longest)):
            # Place i still matches if the token `back` before it is the one `back` before the end.
            running[:, :back] = False
            here = self.tokens[:, : n - back] == self.tokens[:, n - 1 - back, None]
            running[:, back:] &= here & fit[:, : n - back]
            # To end early somebody has to look.
            if looks and not bool(running[:, :-1].any()):
                return
            self.lengths += running

    def breaks(self, tokens: Tensor) -> Tensor:
        """Which of these tokens are breakers; `torch.isin` may look for distinct ones, and wait."""
        hits = torch.zeros_like(tokens, dtype=torch.bool)
        for breaker in self._breakers:
            hits |= tokens == breaker
        return hits

    def rows(self, which: Tensor) -> Matcher:
        """A matcher of these rows (B,) alone, in this order."""
        twin = self.copy()
        twin.tokens, twin.lengths = self.tokens[which], self.lengths[which]
        return twin

    def joined(self, other: Matcher) -> Matcher:
        """A matcher of this one's rows and then those of another with the same parameters."""
        twin = self.copy()
        places = max(self.tokens.shape[1], other.tokens.shape[1])
        left, right = ((places - matcher.tokens.shape[1], 0) for matcher in (self, other))
        pad = torch.nn.functional.pad
        twin.tokens = torch.cat(
            (pad(self.tokens, left, value=EMPTY), pad(other.tokens, right, value=EMPTY))
        )
        twin.lengths = torch.cat((pad(self.lengths, left), pad(other.lengths, right)))
        twin._used = max(self._used, other._used)
        return twin

    def cropped(self, places: int) -> Matcher:
        """A matcher with at most `places`, as many at least as the longest row has tokens."""
        if self.tokens.shape[1] <= places:
            return self
        twin = self.copy()
        cut = self.tokens.shape[1] - places
        # A copy: a view would hold on to what was cut off.
        twin.tokens, twin.lengths = self.tokens[:, cut:].clone(), self.lengths[:, cut:].clone()
        twin._used = places
        return twin

    def copy(self) -> Matcher:
        """An independent matcher in the same state."""
        twin = Matcher.__new__(Matcher)
        # No tensor is ever written after a push: pushes replace them.
        twin.__dict__.update(self.__dict__)
        return twin
