"""Guardian against Algorithm 1 written down independently: when it checks, fires, and why."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil import Detector, Guardian, Verdict, detectors

PROMPT = b"Anna has 3 apples and gives Bob 2 of them. How many are left?"


def oracle(prompt: bytes, pieces: list[bytes], f: int, t: float) -> tuple[int, int, int] | None:
    """Algorithm 1 with checks after f, 2f, ... tokens: (step, size before, size), or None."""
    last = len(zlib.compress(prompt, 6))
    for step in range(f, len(pieces) + 1, f):
        size = len(zlib.compress(prompt + b"".join(pieces[:step]), 6))
        if size - last < t:
            return step, last, size
        last = size
    return None


def fresh(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [b" %x" % rng.randrange(16**5) for _ in range(count)]


def watch(guardian: Guardian, pieces: list[bytes], prompt: bytes = PROMPT) -> Verdict | None:
    return guardian.watch(prompt).update(pieces)


@pytest.mark.parametrize("f", [20, 100, 250, 1000])
@pytest.mark.parametrize("period", [1, 7, 33])
def test_fires_on_a_verbatim_loop_at_any_f(f: int, period: int):
    loop = fresh(period, seed=period) * (4 * f // period + 1)
    verdict = watch(Guardian(f=f), loop)
    assert verdict is not None
    assert verdict.token <= 3 * f


@pytest.mark.parametrize("f", [20, 100, 250])
def test_quiet_on_text_without_repeats(f: int):
    assert watch(Guardian(f=f), fresh(3000, seed=f)) is None


@given(
    start=st.integers(0, 300),
    period=st.integers(1, 60),
    f=st.integers(1, 120),
    rate=st.sampled_from([0.02, 0.08, 0.5, 2.0]),
    sizes=st.lists(st.integers(1, 150), min_size=1, max_size=6),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_same_verdict_as_the_algorithm_however_the_stream_is_cut(
    start: int, period: int, f: int, rate: float, sizes: list[int], seed: int
):
    pieces = fresh(start, seed) + fresh(period, seed + 1) * (400 // period)
    expected = oracle(PROMPT, pieces, f, rate * f)
    guardian = Guardian(f=f, rate=rate)
    whole = watch(guardian, pieces)
    found = None if whole is None else whole.token
    assert found == (None if expected is None else expected[0])
    watcher, cut, at, turn = guardian.watch(PROMPT), None, 0, 0
    while at < len(pieces) and cut is None:
        size = sizes[turn % len(sizes)]
        cut = watcher.update(pieces[at : at + size])
        at, turn = at + size, turn + 1
    assert cut == whole


def test_checks_fall_after_f_and_2f_tokens_and_not_before():
    dead = [b"a"] * 500
    guardian = Guardian(f=100).watch()
    # The first hundred still cost a few bytes more than nothing; how many, zlib says.
    step = oracle(b"", dead, 100, 8)
    assert step is not None
    assert guardian.update(dead[: step[0] - 1]) is None
    verdict = guardian.update([b"a"])
    assert verdict is not None
    assert verdict.token == step[0]


def test_first_comparison_is_with_the_compressed_prompt():
    """An output that only copies its prompt gains nothing, so it ends at the first check."""
    words = fresh(60, seed=5)
    verdict = watch(Guardian(f=60, rate=0.3), words, prompt=b"".join(words))
    assert verdict is not None
    assert verdict.token == 60
    assert watch(Guardian(f=60, rate=0.3), words, prompt=b"") is None


def test_evidence_adds_up():
    pieces = fresh(300, seed=9) + [b" and", b" so", b" on"] * 300
    verdict = watch(Guardian(f=50, rate=0.1), pieces)
    expected = oracle(PROMPT, pieces, 50, 5.0)
    assert verdict is not None
    assert expected is not None
    step, before, size = expected
    assert verdict == Verdict(
        "guardian",
        step,
        {
            "step": step,
            "previous_bytes": before,
            "compressed_bytes": size,
            "growth_bytes": size - before,
            "threshold_bytes": 5.0,
        },
        anchor=step - 50,
    )
    assert size - before < 5


def test_growth_equal_to_the_threshold_goes_on():
    """0.07 * 100 is a little more than 7 in binary; the paper's comparison is with 7."""
    assert 0.07 * 100 > 7
    assert Guardian(f=100, rate=0.07).threshold == 7
    pieces = fresh(30, seed=3)
    small = len(zlib.compress(PROMPT, 6))
    growth = len(zlib.compress(PROMPT + b"".join(pieces), 6)) - small
    assert watch(Guardian(f=30, rate=growth / 30), pieces) is None
    assert watch(Guardian(f=30, rate=(growth + 1) / 30), pieces) is not None


def test_watchers_are_independent():
    template = Guardian(f=10, rate=0.2)
    one, two = template.watch(b"x"), template.watch(b"x")
    verdict = one.update([b"a"] * 40)
    assert verdict is not None
    assert one.update(fresh(100, seed=1)) == verdict
    assert two.update(fresh(100, seed=1)) is None


def test_by_name_with_parameters():
    guardian = detectors.get("guardian", f=100)
    assert isinstance(guardian, Detector)
    assert guardian == Guardian(f=100)
    assert guardian.params() == {
        "f": 100,
        "rate": 0.08,
        "codec": "deflate",
        "within": None,
        "on_stop": {"name": "stop"},
    }
    assert "guardian" in detectors.names()
    assert "Less is Less" in detectors.describe()["guardian"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"f": 0}, "f = 0"),
        ({"rate": 0}, "rate = 0"),
        ({"rate": float("nan")}, "rate = nan"),
        ({"codec": "deflat"}, "did you mean 'deflate'"),
        ({"rat": 1}, "did you mean 'rate'"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, object], message: str):
    with pytest.raises(InvalidValue, match=message):
        detectors.get("guardian", **params)


def test_an_unknown_detector_is_refused():
    with pytest.raises(InvalidValue, match="did you mean 'guardian'"):
        detectors.get("guardien")
