"""The oracles of `lil` themselves: against the specification's tables, and by hand."""

from __future__ import annotations

import random
from itertools import product
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lil.oracles import (
    dry,
    frequency,
    guardian_rate,
    lz77,
    lz_golden,
    lz_penalty,
    lzss_bits,
    no_repeat_ngram,
    presence,
    presence_window,
    repetition,
)
from tests.lil.oracles.lz_golden import V

# -- LZ penalty ---------------------------------------------------------------------------------

small_streams = st.lists(st.integers(0, 3), max_size=40)


def digits(text: str) -> list[int]:
    return [int(c) for c in text]


@pytest.mark.parametrize("formula", ["derived", "printed"])
@pytest.mark.parametrize(("x", "Bf", "W", "derived", "printed"), lz_golden.CODES)
def test_lz_penalty_has_the_golden_values(
    x: str,
    Bf: int,
    W: int,
    derived: dict[int, float],
    printed: dict[int, float],
    formula: str,
) -> None:
    named = derived | (printed if formula == "printed" else {})
    got = lz_penalty.values(lz_golden.tokens(x), V, Bf, W, formula)
    assert got == pytest.approx(lz_golden.all_tokens(named, 4.0), abs=1e-6)


@pytest.mark.parametrize(("x", "Bf", "ring", "off"), lz_golden.RATES)
def test_lz_penalty_rate_has_the_golden_values(
    x: str, Bf: int, ring: int, off: dict[int, float]
) -> None:
    options = {"alpha": 1, "window": ring, "buffer": Bf, "formula": "rate"}
    got = lz_penalty.penalise([0.0] * V, lz_golden.tokens(x), **options)
    want = [-loss for loss in lz_golden.all_tokens(off, 0.0)]
    assert got == pytest.approx(want, abs=5e-5)


@settings(deadline=None)
@given(small_streams, st.integers(1, 5), st.integers(1, 12))
def test_lz_penalty_suffix_lengths_are_the_recurrence(x: list[int], Bf: int, W: int) -> None:
    """S(e) = min(M, e + 1) with the specification's ring and its step M."""
    ring, M = [-1] * (Bf + W), [0] * (Bf + W)
    for t in x:
        ring = [*ring[1:], t]
        M = [min(m + 1, Bf) if r == t else 0 for m, r in zip(M, ring, strict=True)]
    window, buffer = lz_penalty.split(x, Bf, W)
    empty = W - len(window)
    for e in range(len(window)):
        assert lz_penalty.match_length(window, buffer, e) == min(M[empty + e], e + 1)


@settings(deadline=None)
@given(small_streams, st.integers(1, 6), st.integers(1, 12))
def test_lz_penalty_derived_extension_values_lie_where_the_specification_says(
    x: list[int], Bf: int, W: int
) -> None:
    window, buffer = lz_penalty.split(x, Bf, W)
    for e in range(len(window) - 1):
        length = lz_penalty.match_length(window, buffer, e)
        d = len(window) - e
        if length:
            assert -2 < lz_penalty.extension(length, d, "derived") < 0
            if d == length:  # the only place where the paper's two formulas agree
                gap = lz_penalty.extension(length, d, "derived")
                assert d == 1 or lz_penalty.extension(length, d, "printed") == pytest.approx(gap)


def test_lz_penalty_extension_range_at_the_default_sizes() -> None:
    values = [
        lz_penalty.extension(length, d, "derived")
        for length, d in product(range(1, 33), range(2, 513))
    ]
    assert min(values) == pytest.approx(-1.96, abs=0.005)
    assert max(values) == pytest.approx(-0.003, abs=0.0005)


@settings(deadline=None)
@given(small_streams, st.sampled_from(lz_penalty.FORMULAS))
def test_lz_penalty_leaves_unseen_exempt_and_neutral_logits_alone(
    x: list[int], formula: str
) -> None:
    logits = [0.1 * i - 0.7 for i in range(V)]
    got = lz_penalty.penalise(logits, x, window=6, buffer=3, formula=formula, exempt=[1])
    for token in range(V):
        assert got[token] <= logits[token]
        if token not in x or token == 1:
            assert got[token] == logits[token]
    assert lz_penalty.penalise(logits, x, alpha=0, formula=formula) == logits


def test_lz_penalty_nearest_extension_wins_and_the_newest_window_token_extends_nothing() -> None:
    # w = 1 2 1 2 5 1, b = 1. Matches of length 1 end at d = 6, 4 and 1; after the last stands b.
    pen = lz_penalty.values([1, 2, 1, 2, 5, 1, 1], V, 1, 6, "derived")
    assert pen[2] == pytest.approx(log2(2 * 3 / 4) - 1)
    assert pen[1] == 0
    assert pen[5] == 1


# -- presence_window ----------------------------------------------------------------------------


def test_presence_window_by_hand() -> None:
    got = presence_window.penalise([1.0] * 5, [3, 0, 2, 2, 1], strength=0.5, window=3)
    assert got == [1.0, 0.5, 0.5, 1.0, 1.0]
    assert presence_window.penalise([1.0] * 5, [], strength=0.5) == [1.0] * 5
    got = presence_window.penalise([1.0] * 5, [4, *[0] * 511, 1], strength=1)
    assert got == [0.0, 0.0, 1.0, 1.0, 1.0]


# -- frequency, presence, repetition, no_repeat_ngram --------------------------------------------


def test_counts_by_hand() -> None:
    history = [3, 0, 3, 3]
    assert frequency.penalise([1.0] * 5, history, strength=0.5) == [0.5, 1.0, 1.0, -0.5, 1.0]
    assert presence.penalise([1.0] * 5, history, strength=0.5) == [0.5, 1.0, 1.0, 0.5, 1.0]
    assert frequency.penalise([1.0] * 2, [], strength=9) == [1.0] * 2
    assert presence.penalise([1.0] * 2, [], strength=9) == [1.0] * 2


def test_repetition_by_hand() -> None:
    got = repetition.penalise([3.0, -3.0, 0.0, 5.0], [1, 0, 1, 9], penalty=1.5)
    assert got == [2.0, -4.5, 0.0, 5.0]


@pytest.mark.parametrize(
    ("history", "size", "out"),
    [
        ("", 2, ""),
        ("", 1, ""),
        ("0121", 1, "012"),
        ("0121", 2, "2"),  # "1 2" came before
        ("01212", 3, "1"),  # "1 2 1" came before
        ("0102", 2, ""),
        ("0102 0", 2, "12"),
        ("01", 3, ""),
        ("00", 3, ""),
        ("000", 3, "0"),
    ],
)
def test_no_repeat_ngram_by_hand(history: str, size: int, out: str) -> None:
    got = no_repeat_ngram.penalise([0.0] * 4, digits(history.replace(" ", "")), ngram_size=size)
    assert [t for t in range(4) if got[t] < 0] == digits(out)


# -- dry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "params", "off"),
    [
        # "1 2 3" came before: after "1 2" a 3 is a repetition of length 2.
        ("12341 2", {}, {3: 0.8}),
        ("123912", {"allowed_length": 1}, {3: 0.8 * 1.75}),
        ("0123501 2", {}, {3: 0.8 * 1.75}),
        ("12394 2", {}, {}),  # "2" alone is shorter than the allowed length
        ("12394 2", {"allowed_length": 1}, {3: 0.8}),
        # Two stretches end alike; each goes on with its own token. The longer counts for a shared.
        ("012359124012", {}, {3: 0.8 * 1.75, 4: 0.8}),
        ("01235912301 2", {}, {3: 0.8 * 1.75}),
        # Overlapping itself: of 7 equal tokens 6 repeat.
        ("7777777", {}, {7: 0.8 * 1.75**4}),
        ("7777777", {"longest": 3}, {7: 0.8 * 1.75}),
        ("7777777", {"window": 4}, {7: 0.8 * 1.75}),
        # No match reaches over a breaker, and a breaker is never penalised.
        ("0123501 2", {"sequence_breakers": {1}}, {}),
        ("0123501 2", {"sequence_breakers": {0}}, {3: 0.8}),
        ("0123501 2", {"sequence_breakers": {2}}, {}),
        ("0123501 2", {"sequence_breakers": {3}}, {}),
        ("", {}, {}),
        ("1", {}, {}),
    ],
)
def test_dry_by_hand(history: str, params: dict[str, object], off: dict[int, float]) -> None:
    tokens = digits(history.replace(" ", ""))
    assert dry.penalties(tokens, **params) == pytest.approx(off)  # type: ignore[arg-type]
    want = [1.0 - off.get(token, 0.0) for token in range(10)]
    assert dry.penalise([1.0] * 10, tokens, **params) == pytest.approx(want)


def test_dry_with_no_multiplier_changes_nothing() -> None:
    assert dry.penalise([0.3] * 4, [1, 2] * 9, multiplier=0.0) == [0.3] * 4


# -- lzss_bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "params", "parsed"),
    [
        ("", {}, []),
        ("5", {}, [(5,)]),
        ("777777", {}, [(7,), (1, 5)]),
        ("777777", {"overlap": False}, [(7,), (1, 1), (2, 2), (2, 2)]),
        ("777777", {"longest": 2}, [(7,), (1, 2), (1, 2), (1, 1)]),
        ("12312341", {}, [(1,), (2,), (3,), (3, 3), (4,), (4, 1)]),
        ("1211", {}, [(1,), (2,), (2, 1), (1, 1)]),  # of equal matches the nearest
        ("12034125", {}, [(1,), (2,), (0,), (3,), (4,), (5, 2), (5,)]),
        ("12034125", {"window": 4}, [(1,), (2,), (0,), (3,), (4,), (1,), (2,), (5,)]),
    ],
)
def test_lzss_by_hand(tokens: str, params: dict[str, object], parsed: list[object]) -> None:
    assert lzss_bits.parse(digits(tokens), **params) == parsed  # type: ignore[arg-type]


def test_lzss_bits_by_hand() -> None:
    assert lzss_bits.bits([], 16) == 0
    # 12312341: four literals, 3 tokens from 3 back, 1 token from 4 back.
    parsed = lzss_bits.parse(digits("12312341"))
    assert lzss_bits.bits(parsed, 16) == pytest.approx(4 * 5 + (2 * log2(3) + 1) + (2 + 0 + 1))


@settings(deadline=None)
@given(small_streams, st.sampled_from([None, 1, 4]), st.sampled_from([None, 1, 3]), st.booleans())
def test_lzss_parse_is_greedy_and_gives_the_tokens_back(
    tokens: list[int], window: int | None, longest: int | None, overlap: bool
) -> None:
    parsed = lzss_bits.parse(tokens, window=window, longest=longest, overlap=overlap)
    assert lzss_bits.unparse(parsed) == tokens
    i = 0
    for item in parsed:
        if len(item) == 1:
            assert item[0] not in tokens[max(i - (window or i), 0) : i]
            i += 1
        else:
            d, length = item
            assert window is None or d <= window
            assert longest is None or length <= longest
            assert overlap or length <= d
            i += length


# -- lz77 ---------------------------------------------------------------------------------------


def test_lz77_has_the_appendix_example() -> None:
    triples = lz77.encode("0040040042304237", search=8, ahead=8, fill="0")
    assert triples == [(0, 2, "4"), (5, 6, "2"), (0, 0, "3"), (4, 4, "7")]
    assert "".join(f"{p}{n}{c}" for p, n, c in triples) == "024562003447"
    assert "".join(lz77.decode(triples, search=8, fill="0")) == "0040040042304237"


def test_lz77_at_the_edges() -> None:
    assert lz77.encode("", fill="0") == []
    # The last symbol is a literal although it would match.
    assert lz77.encode("0", fill="0") == [(0, 0, "0")]
    assert lz77.encode("00", fill="0") == [(0, 1, "0")]
    # A look-ahead of 8 lets 7 match.
    assert lz77.encode("0" * 9, fill="0") == [(0, 7, "0"), (0, 0, "0")]


@settings(deadline=None)
@given(small_streams, st.integers(1, 9), st.integers(1, 9))
def test_lz77_decode_inverts_encode(tokens: list[int], search: int, ahead: int) -> None:
    triples = lz77.encode(tokens, search=search, ahead=ahead, fill=0)
    assert lz77.decode(triples, search=search, fill=0) == tokens
    assert all(0 <= p < search and 0 <= n < ahead for p, n, _ in triples)
    assert sum(n + 1 for _, n, _ in triples) == len(tokens)


# -- guardian -----------------------------------------------------------------------------------


def sizes(*values: float):
    """A `size` for pieces of one byte each after an empty prompt: values[i] after i bytes."""
    return lambda data: values[len(data)]


def test_guardian_by_hand() -> None:
    pieces = [b"x"] * 6
    # Checks after 2, 4, 6 tokens see 10, 14, 18, 21 bytes: growth 4, 4, 3.
    size = sizes(10, 0, 14, 0, 18, 0, 21)
    assert guardian_rate.first_stop(b"", pieces, f=2, rate="1.5", size=size) is None  # 3 is not < 3
    stop = guardian_rate.first_stop(b"", pieces, f=2, rate="1.6", size=size)
    assert stop == guardian_rate.Stop(6, 18, 21)
    stop = guardian_rate.first_stop(b"", pieces, f=2, rate="2.1", size=size)
    assert stop == guardian_rate.Stop(2, 10, 14)  # the first comparison is with the prompt
    assert guardian_rate.first_stop(b"", pieces[:5], f=2, rate="1.6", size=size) is None
    assert guardian_rate.first_stop(b"", pieces[:1], f=2, rate="99", size=size) is None


def test_guardian_stops_a_loop_and_lets_fresh_text_run() -> None:
    generator = random.Random(0)
    fresh = [bytes([generator.randrange(256)]) for _ in range(1000)]
    loop = [b"again and "] * 1000
    assert guardian_rate.first_stop(b"prompt", fresh) is None
    stop = guardian_rate.first_stop(b"prompt", loop)
    assert stop is not None
    assert stop.token in (250, 500)
    assert stop.after - stop.before < 20
    late = guardian_rate.first_stop(b"prompt", fresh[:500] + loop)
    assert late is not None
    assert late.token in (750, 1000)
