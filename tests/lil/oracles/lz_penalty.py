"""Oracle of the LZ penalty: the definition with suffixes of the buffer, written out.

Logarithms are to base 2. A history is the list of tokens the penalty sees, oldest first; V is the
vocabulary's size. Values are those to be added, times alpha, to the logits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log2

FORMULAS = ("derived", "printed", "rate")


def split(history: Sequence[int], Bf: int, W: int) -> tuple[list[int], list[int]]:
    """(window, buffer): the buffer is the last Bf tokens, the window the W tokens before it."""
    tokens = list(history)
    start_of_buffer = max(len(tokens) - Bf, 0)
    start_of_window = max(start_of_buffer - W, 0)
    return tokens[start_of_window:start_of_buffer], tokens[start_of_buffer:]


def match_length(window: Sequence[int], buffer: Sequence[int], e: int) -> int:
    """S(e): the longest k with window[e-k+1..e] equal to the last k tokens of the buffer."""
    k = 0
    while k < min(e + 1, len(buffer)) and window[e - k] == buffer[len(buffer) - 1 - k]:
        k += 1
    return k


def extension(length: int, d: int, formula: str) -> float:
    """Value of a token which extends a match of this length whose end lies at distance d."""
    if formula == "derived":
        return log2((length + 1) * (d - 1) / (length * d)) - 1
    if formula == "printed":
        clamped = max(length, 2)
        return log2(1 - (d - clamped + 1) / (clamped * d)) - 1
    raise ValueError(f"no extension value {formula!r}")


def values(history: Sequence[int], V: int, Bf: int, W: int, formula: str) -> list[float]:
    """pen (V,): log2 V for a token out of reach, less for one that is cheap to encode.

    `derived` and `printed` split the history into window and buffer. `rate` has one ring of the
    last W tokens, the buffer among them.
    """
    if formula == "rate":
        return rate_values(history, V, Bf, W)
    window, buffer = split(history, Bf, W)
    pen = [log2(V)] * V
    for e, token in enumerate(window):  # later ones are nearer and overwrite
        pen[token] = log2(len(window) - e)
    lengths = [match_length(window, buffer, e) for e in range(len(window))]
    longest = max(lengths, default=0)
    if longest >= 1:
        for e in range(len(window)):  # again the nearest is written last
            d = len(window) - e
            if lengths[e] == longest and d >= 2:
                pen[window[e + 1]] = extension(longest, d, formula)
    return pen


def rate_values(history: Sequence[int], V: int, Bf: int, ring_size: int) -> list[float]:
    """Bits a token of the cheapest match which ends in that token, clamped to [0, log2 V]."""
    ring = list(history)[-ring_size:]
    pen = [log2(V)] * V
    if len(ring) <= Bf:
        return pen
    for i in range(Bf, len(ring)):
        d = len(ring) - i
        equal = 0
        while equal < Bf and ring[i - 1 - equal] == ring[len(ring) - 1 - equal]:
            equal += 1
        length = 1 + equal
        bits = (log2(d + 1) + log2(length)) / length
        pen[ring[i]] = min(pen[ring[i]], max(bits, 0.0))
    return pen


def penalise(
    logits: Sequence[float],
    history: Sequence[int],
    *,
    alpha: float = 0.15,
    window: int = 512,
    buffer: int = 32,
    formula: str = "derived",
    exempt: Collection[int] = (),
) -> list[float]:
    """New logits (V,): logits + alpha (pen - log2 V); exempt tokens keep theirs."""
    V = len(logits)
    pen = values(history, V, buffer, window, formula)
    return [
        logit if token in exempt else logit + alpha * (pen[token] - log2(V))
        for token, logit in enumerate(logits)
    ]
