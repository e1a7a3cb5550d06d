"""The entropy bound: by hand, and around sources whose entropy is known."""

from __future__ import annotations

import math
import random
from itertools import pairwise, product

import pytest

from attention.errors import InvalidValue
from lil.compression.codecs import lz77
from lil.compression.curves import entropy_bounds


def test_entropy_bound_by_hand():
    """|A| = 2, Ls = 9: eps = (3 + 3 * 3 + log2 4.5) / 8."""
    low, high = entropy_bounds(0.9, lookahead=9, alphabet=2)
    assert high == 0.9
    assert low == pytest.approx(0.9 - (12 + math.log2(4.5)) / 8)
    low, _ = entropy_bounds(0.5, lookahead=2**20, alphabet=256)
    assert low == pytest.approx(0.5 - (3 + 3 * 2.5 + 19 / 8) / (2**20 - 1), abs=1e-9)


# Sources: which pairs of neighbours they forbid.
SOURCES = {
    "binary": (2, set()),
    "no two ones": (2, {(1, 1)}),
    "never the same twice": (3, {(0, 0), (1, 1), (2, 2)}),
    "upwards only": (4, {(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)}),
    "one string": (2, {(0, 1), (1, 0), (1, 1)}),
}


def allowed(text: tuple[int, ...] | list[int], forbidden: set[tuple[int, int]]) -> bool:
    return not any(pair in forbidden for pair in pairwise(text))


def enough(A: int, length: int, strings: int) -> int:
    """Appendix B's n - Ls: a text in which so many strings of this length must come back."""
    cut = next(k for k in range(length + 1) if strings <= A**k)
    several = [A**m if m <= cut else strings for m in range(1, length + 1)]
    return length * sum((length - m + 1) * count for m, count in enumerate(several, 1))


@pytest.mark.parametrize("lookahead", [3, 4, 6])
@pytest.mark.parametrize("source", SOURCES)
def test_the_bound_holds_around_sources_of_known_entropy(source: str, lookahead: int):
    """h(Ls - 1) = log_|A| of the source's strings of Ls - 1 symbols, a symbol."""
    A, forbidden = SOURCES[source]
    strings = sum(allowed(s, forbidden) for s in product(range(A), repeat=lookahead - 1))
    h = math.log(strings, A) / (lookahead - 1)
    n = enough(A, lookahead - 1, strings)
    rng = random.Random(0)
    for _ in range(3):
        text = [rng.randrange(A)] if source != "one string" else [0]
        while len(text) < n:
            after = [s for s in range(A) if (text[-1], s) not in forbidden]
            text.append(rng.choice(after))
        triples = lz77.encode(text, search=n, ahead=lookahead)
        ratio = len(triples) * lz77.codeword(n, lookahead, A) / n
        low, high = entropy_bounds(ratio, lookahead, A)
        assert low <= h <= high


@pytest.mark.parametrize(
    "arguments", [(-0.1, 9, 2), (0.5, 1, 2), (0.5, 9, 1), (math.nan, 9, 2), (math.inf, 9, 2)]
)
def test_entropy_of_nonsense_is_refused(arguments):
    with pytest.raises(InvalidValue):
        entropy_bounds(*arguments)
