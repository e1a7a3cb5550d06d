"""Chunks of a chain of thought, between blank lines, and how many hot ones are enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attention.errors import check_int, check_share

BLANK_LINE = b"\n\n"
# What may stand behind a sentence in the token that ends it, and what ends one.
_BEHIND = b" \t\"')]}*`"
_ENDS = (b".", b"!", b"?", b"\n")


class Chunk(NamedTuple):
    """Generated tokens `start` to `end`, the last of them the one that ended the chunk."""

    start: int
    end: int

    @property
    def tokens(self) -> int:
        """Its length, the token that ended it counted."""
        return self.end - self.start


def ends_chunk(piece: bytes) -> bool:
    """Whether this token holds a blank line (Word Salad Chopper, section 3.1)."""
    return BLANK_LINE in piece


def ends_sentence(piece: bytes) -> bool:
    """Whether a token with these bytes ends a sentence."""
    return piece.rstrip(_BEHIND).endswith(_ENDS)


def chunks(pieces: Sequence[bytes]) -> list[Chunk]:
    """The complete chunks of some generated tokens; text behind the last blank line is none."""
    complete, start = [], 0
    for end, piece in enumerate(pieces, start=1):
        if ends_chunk(piece):
            complete.append(Chunk(start, end))
            start = end
    return complete


class Streaks:
    """Counts hot chunks, long and short separately, and says when there are enough.

    Word Salad Chopper (appendix D), as in the authors' offline code (online all chunks are as long
    as the newest): a chunk is hot if its probability is above `threshold`, short if it has fewer
    than `short` tokens. A hot long one adds to the long streak and zeroes the short one, a hot
    short one the other way round, a cold one zeroes both. `long_streak` long or `short_streak`
    short ones are enough. Where we differ: we cut behind the last cold one (Algorithm 1, line 30).

    Raises:
        InvalidValue: a threshold outside 0 to 1, or a number below 1 (`short`: below 0).
    """

    def __init__(
        self,
        threshold: float = 0.5,
        short: int = 10,
        long_streak: int = 2,
        short_streak: int = 5,
    ) -> None:
        self.threshold = check_share("threshold", threshold)
        self.short = check_int("short", short, 0)
        self.long_streak = check_int("long_streak", long_streak, 1)
        self.short_streak = check_int("short_streak", short_streak, 1)
        self.long = self.brief = 0
        self.tokens = 0
        self.cold_end = 0  # tokens up to the end of the last cold chunk
        self.hot: list[float] = []  # probabilities of the chunks since then

    def push(self, tokens: int, p: float) -> bool:
        """Take the next chunk's length and probability; whether to chop back to `cold_end`."""
        self.tokens += tokens
        if not p > self.threshold:
            self.long = self.brief = 0
            self.cold_end = self.tokens
            self.hot.clear()
            return False
        self.hot.append(p)
        if tokens >= self.short:
            self.long, self.brief = self.long + 1, 0
        else:
            self.long, self.brief = 0, self.brief + 1
        return self.long >= self.long_streak or self.brief >= self.short_streak
