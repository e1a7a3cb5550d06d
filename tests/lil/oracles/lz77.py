"""Oracle of `lz77`: Appendix A of "Lil: Less is Less", triples (p, l, c) over two buffers.

The search buffer holds the last `search` symbols, at the start a fill symbol. p is the index in it,
counted from its oldest symbol, where the longest match starts; of equal matches the smallest p,
as in the appendix's first step. A match may run on into the look-ahead buffer (its second step
does). Without a match p = l = 0. A triple always ends in a literal, so a match leaves one symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Triple = tuple[int, int, Any]


def encode(symbols: Sequence[Any], *, search: int = 8, ahead: int = 8, fill: Any) -> list[Triple]:
    """The triples of the sequence; search and ahead are the buffers' lengths in symbols."""
    history: list[Any] = [fill] * search
    rest = list(symbols)
    triples = []
    while rest:
        look = rest[:ahead]
        both = history[len(history) - search :] + look
        p, length = 0, 0
        for start in range(search):
            n = 0
            while n < len(look) - 1 and both[start + n] == look[n]:
                n += 1
            if n > length:
                p, length = start, n
        triples.append((p, length, look[length]))
        history += rest[: length + 1]
        rest = rest[length + 1 :]
    return triples
