"""What a compression ratio says of a source's entropy."""

from __future__ import annotations

import math

from attention.errors import InvalidValue


def entropy_bounds(ratio: float, lookahead: int, alphabet: int = 256) -> tuple[float, float]:
    """Least and greatest entropy of a source whose text LZ77 compresses to `ratio`.

    "Lil: Less is Less", eq. 2 and Appendix B: ratio - eps(Ls) <= h(Ls - 1) <= ratio with eps(Ls) =
    (3 + 3 log(Ls - 1) + log(Ls / 2)) / (Ls - 1). Logarithms are to base |A|, so h is in symbols of
    the alphabet per symbol: 1 is incompressible; times log2 |A| it is bits per symbol. It holds for
    fixed-length codewords and a long enough search buffer, as in the codec `lz77`; a ratio of
    deflate or zstd is no bound on anything. At short look-ahead buffers eps exceeds 1 and the lower
    bound is negative: it then says nothing.

    Args:
        ratio: rho, compressed length / original length, both in symbols.
        lookahead: Ls, length of the look-ahead buffer in symbols.
        alphabet: |A|, number of different symbols.

    Raises:
        InvalidValue: a negative ratio, `lookahead` or `alphabet` below 2.
    """
    if not 0 <= ratio < math.inf:
        raise InvalidValue("ratio", ratio, "compressed / original length, 0 or above")
    if lookahead < 2:
        raise InvalidValue("lookahead", lookahead, "at least 2 symbols")
    if alphabet < 2:
        raise InvalidValue("alphabet", alphabet, "at least 2 symbols")
    logs = 3 * math.log(lookahead - 1, alphabet) + math.log(lookahead / 2, alphabet)
    return ratio - (3 + logs) / (lookahead - 1), ratio
