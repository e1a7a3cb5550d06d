"""Which chunks repeat, and where word salad begins."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lil.chopper.labels import Labeller, TextMatch


class Numbers:
    """Texts are angles in degrees: the cosine of two is that of what lies between them."""

    name = "numbers"

    def params(self) -> dict[str, object]:
        return {"unit": "degrees"}

    def embed(self, texts: list[str]) -> npt.NDArray[np.float64]:
        angles = np.radians([float(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).reshape(len(texts), 2)


def naive_cosine(a: str, b: str, n: int = 3) -> float:
    """Cosine of n-gram counts, by dictionaries."""
    pad = " " * (n - 1)
    counts = []
    for text in (a, b):
        even = pad + " ".join(text.lower().split()) + pad
        counts.append(Counter(even[i : i + n] for i in range(len(even) - n + 1)))
    dot = sum(counts[0][gram] * counts[1][gram] for gram in counts[0])
    return dot / math.prod(math.sqrt(sum(v * v for v in count.values())) for count in counts)


@given(st.lists(st.text("ab c\n", max_size=12), min_size=2, max_size=6), st.integers(2, 4))
def test_text_match_is_the_cosine_of_counts(texts: list[str], n: int) -> None:
    vectors = TextMatch(n).embed(texts)
    for i, a in enumerate(texts):
        for j, b in enumerate(texts):
            assert vectors[i] @ vectors[j] == pytest.approx(naive_cosine(a, b, n))


@given(
    st.lists(st.integers(0, 12), max_size=30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.99, 0.999, 1.0]),
)
def test_labels_are_what_pairs_say(
    steps: list[int], window: int, run: int, similarity: float
) -> None:
    # Angles that differ by a few degrees: 0.99 is 8.1 degrees, 0.999 is 2.6.
    texts = [str(3.0 * step) for step in steps]
    repeats = [
        any(
            math.cos(math.radians(3.0 * (steps[i] - steps[j]))) >= similarity - 1e-9
            for j in range(max(0, i - window), i)
        )
        for i in range(len(steps))
    ]
    first = next((i for i in range(len(steps)) if repeats[i : i + run] == [True] * run), None)
    labeller = Labeller(Numbers(), similarity=similarity, window=window, run=run)
    assert labeller.repeats(texts) == repeats
    assert labeller.salad_from(texts) == first
