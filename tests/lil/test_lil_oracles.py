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
    guardian_rate,
    lz77,
    lz_penalty,
    lzss_bits,
    presence_window,
    repetition_rate,
)

# -- LZ penalty ---------------------------------------------------------------------------------

V = 16
GOLDEN = [  # history, Bf, W, derived, and what `printed` has else
    ("1234567", 2, 5, {1: 2.321928, 2: 2, 3: 1.584963, 4: 1, 5: 0}, {}),
    ("512391", 1, 5, {1: 2, 2: -0.415037, 3: 1, 5: 2.321928, 9: 0}, {2: -1.678072}),
    (
        "12345612",
        2,
        6,
        {1: 2.584963, 2: 2.321928, 3: -0.736966, 4: 1.584963, 5: 1, 6: 0},
        {3: -1.736966},
    ),
    ("1234" * 3, 4, 8, {1: -1, 2: 1.584963, 3: 1, 4: 0}, {1: -1.152003}),
    ("123455", 1, 5, {1: 2.321928, 2: 2, 3: 1.584963, 4: 1, 5: 0}, {}),
    (
        "123124712",
        2,
        7,
        {1: 2, 2: 1.584963, 3: -0.678072, 4: -1, 7: 0},
        {3: -1.777608, 4: -1.584963},
    ),
    ("123498", 2, 4, {1: 2, 2: 1.584963, 3: 1, 4: 0}, {}),
    (
        "123724612",
        2,
        7,
        {1: 2.807355, 2: 1.584963, 3: -0.678072, 4: 1, 6: 0, 7: 2},
        {3: -1.777608},
    ),
    ("123", 4, 8, {}, {}),
    ("7" * 10, 3, 5, {7: -1.584963}, {7: -1}),
]
GOLDEN_RATE = [  # history, Bf, ring, what comes off at alpha = 1
    ("1234" * 3, 4, 12, {1: 3.0712, 2: 2, 3: 2.4150, 4: 3}),
    ("7" * 10, 3, 8, {7: 3.25}),
    ("12345612", 2, 8, {1: 2.4150, 2: 3, 3: 2.5359, 4: 1.4150, 5: 1.6781, 6: 2}),
    ("12345612", 2, 6, {1: 2.4150, 2: 3, 5: 1.6781, 6: 2}),
]
small_streams = st.lists(st.integers(0, 3), max_size=40)


def digits(text: str) -> list[int]:
    return [int(c) for c in text]


@pytest.mark.parametrize("formula", ["derived", "printed"])
@pytest.mark.parametrize(("x", "Bf", "W", "derived", "printed"), GOLDEN)
def test_lz_penalty_has_the_golden_values(
    x: str,
    Bf: int,
    W: int,
    derived: dict[int, float],
    printed: dict[int, float],
    formula: str,
) -> None:
    named = derived | (printed if formula == "printed" else {})
    want = [named.get(token, 4.0) for token in range(V)]
    assert lz_penalty.values(digits(x), V, Bf, W, formula) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(("x", "Bf", "ring", "off"), GOLDEN_RATE)
def test_lz_penalty_rate_has_the_golden_values(
    x: str, Bf: int, ring: int, off: dict[int, float]
) -> None:
    got = lz_penalty.penalise([0.0] * V, digits(x), alpha=1, window=ring, buffer=Bf, formula="rate")
    want = [-off.get(token, 0.0) for token in range(V)]
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
    got = presence_window.penalise([1.0] * 5, [3, 0, 2, 2, 1], penalty=0.5, window=3)
    assert got == [1.0, 0.5, 0.5, 1.0, 1.0]
    assert presence_window.penalise([1.0] * 5, [], penalty=0.5) == [1.0] * 5
    got = presence_window.penalise([1.0] * 5, [4, *[0] * 511, 1], penalty=1)
    assert got == [0.0, 0.0, 1.0, 1.0, 1.0]


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
        ("0123501 2", {"breakers": {1}}, {}),
        ("0123501 2", {"breakers": {0}}, {3: 0.8}),
        ("0123501 2", {"breakers": {2}}, {}),
        ("0123501 2", {"breakers": {3}}, {}),
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


# -- repetition rate ----------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_repetition_needs_twenty_whole_blocks(period: int, offset: int) -> None:
    block, before, after = list(range(period)), [-1] * offset, [-2, -3]
    assert repetition_rate.repeats(before + block * 20 + after)
    assert not repetition_rate.repeats(before + (block * 20)[:-1] + after)
    assert not repetition_rate.repeats(before + block * 19 + after + block)
    assert repetition_rate.repeats(before + block * 3, times=3)


def test_repetition_rate_is_a_share_of_the_sequences() -> None:
    assert repetition_rate.rate([[1] * 20, [1] * 19, [], [1, 2] * 25]) == 0.5
    assert repetition_rate.rate([]) is None


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
    samples = [(b"prompt", fresh), (b"prompt", loop), (b"", fresh[:249]), (b"", loop)]
    assert guardian_rate.stopped_rate(samples) == 0.5
    assert guardian_rate.stopped_rate([]) is None
