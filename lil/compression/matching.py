"""Suffix matches of growing sequences against their own past, one compare and one select a token.

Shared by the LZ penalty, DRY and the codec `lzss_bits`. A position of the past is named by its
distance to the newest token, and the length of the match that ends there is kept for every
distance. A new token t moves every token one place further back; a match at a distance then grows
by one where the token at that distance is t, and is zero elsewhere. The lengths themselves never
move, so a step costs O(size), whatever the length of the matches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EMPTY = -1
"""Stands in a ring where a row has no token yet; equal to no token."""


class Matcher:
    """The last `size` tokens of each row and where their newest tokens occurred before.

    `tokens` (B, size) is right-aligned: index size - 1 is the newest token, older places of a short
    row hold `EMPTY`. `lengths` (B, size): how many tokens up to and including this place equal as
    many newest tokens, at most `longest`; of the newest place itself it says nothing. A match may
    reach back over the ring's left edge by what was pushed before; whoever wants matches inside the
    ring takes min(lengths, index + 1).

    Args:
        rows: B.
        size: places in the ring, in tokens; None keeps every token and grows.
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
        self.tokens = torch.full((rows, size or 0), EMPTY, dtype=torch.int64, device=device)
        self.lengths = torch.zeros_like(self.tokens)
        self._breakers = torch.tensor(sorted(breakers), dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and lengths."""
        return self.tokens.nbytes + self.lengths.nbytes

    def push(self, newest: Tensor, live: Tensor | None = None) -> None:
        """Append `newest` (B,), leaving rows alone where `live` (B,) is False."""
        newest = newest[:, None]
        old_tokens, old_lengths = self.tokens, self.lengths
        if self.size is None:
            # Grown on the left: lengths belong to distances, so the new place is the oldest.
            old_tokens = torch.cat((torch.full_like(newest, EMPTY), old_tokens), dim=1)
            old_lengths = torch.cat((torch.zeros_like(newest), old_lengths), dim=1)
        tokens = torch.cat((old_tokens[:, 1:], newest), dim=1)
        matched = tokens == newest
        if len(self._breakers):
            matched &= ~torch.isin(newest, self._breakers)
        lengths = torch.where(matched, (old_lengths + 1).clamp_(max=self.longest), 0)
        if live is not None:
            tokens = torch.where(live[:, None], tokens, old_tokens)
            lengths = torch.where(live[:, None], lengths, old_lengths)
        self.tokens, self.lengths = tokens, lengths

    def load(self, history: Tensor) -> None:
        """Start anew from `history` (B, n), right-aligned with `EMPTY` before short rows.

        Afterwards no match reaches back over the ring's left edge; min(lengths, index + 1) is the
        same as if the tokens had been pushed one by one, now and after further pushes.
        """
        tokens = history if self.size is None else history[:, -self.size :]
        missing = 0 if self.size is None else self.size - tokens.shape[1]
        self.tokens = torch.nn.functional.pad(tokens, (missing, 0), value=EMPTY)
        self.lengths = torch.zeros_like(self.tokens)
        n = self.tokens.shape[1]
        fit = self.tokens != EMPTY
        if len(self._breakers):
            fit &= ~torch.isin(self.tokens, self._breakers)
        running = fit.clone()
        for back in range(min(n, self.longest)):
            # Place i still matches if the token `back` before it is the one `back` before the end.
            running[:, :back] = False
            here = self.tokens[:, : n - back] == self.tokens[:, n - 1 - back, None]
            running[:, back:] &= here & fit[:, : n - back]
            if not bool(running[:, :-1].any()):
                return
            self.lengths += running

    def copy(self) -> Matcher:
        """An independent matcher in the same state."""
        twin = Matcher.__new__(Matcher)
        # No tensor is ever written after a push: pushes replace them.
        twin.__dict__.update(self.__dict__)
        return twin
