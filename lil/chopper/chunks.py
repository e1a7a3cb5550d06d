"""Chunks: the pieces of a chain of thought between blank lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BLANK_LINE = b"\n\n"


class Chunk(NamedTuple):
    """Generated tokens `start` to `end`, the last of them the one that ended the chunk."""

    start: int
    end: int

    @property
    def tokens(self) -> int:
        """Its length, the token that ended it counted."""
        return self.end - self.start


def ends_chunk(piece: bytes) -> bool:
    """Whether a token with these bytes ends a chunk: a blank line stands inside the token itself.

    As in the Word Salad Chopper (section 3.1, its newline token ids): two tokens of one line end
    each do not end a chunk, for no single hidden state stands for the blank line they make.
    """
    return BLANK_LINE in piece


def chunks(pieces: Sequence[bytes]) -> list[Chunk]:
    """The complete chunks of some generated tokens; text behind the last blank line is none.

    Args:
        pieces: bytes of each generated token.
    """
    found, start = [], 0
    for end, piece in enumerate(pieces, start=1):
        if ends_chunk(piece):
            found.append(Chunk(start, end))
            start = end
    return found
