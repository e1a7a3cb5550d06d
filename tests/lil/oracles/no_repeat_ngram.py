"""Oracle of no-repeat n-gram: a token that would complete an n-gram of the history is out."""

from __future__ import annotations

import math
from collections.abc import Sequence


def penalise(logits: Sequence[float], history: Sequence[int], *, ngram_size: int) -> list[float]:
    """New logits (V,): -inf for every token whose n-gram is in the history already."""
    tokens = list(history)
    ngrams = [tokens[i : i + ngram_size] for i in range(len(tokens) - ngram_size + 1)]
    new = list(logits)
    for token in range(len(new)):
        grown = [*tokens, token]
        if len(grown) >= ngram_size and grown[len(grown) - ngram_size :] in ngrams:
            new[token] = -math.inf
    return new
