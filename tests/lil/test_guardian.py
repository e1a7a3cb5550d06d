"""Guardian against Algorithm 1 written down independently: when it fires, and why."""

from __future__ import annotations

import random
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from lil import Guardian, Verdict
from tests.lil.oracles.guardian_rate import first_stop

PROMPT = b"Anna has 3 apples and gives Bob 2 of them. How many are left?"


def fresh(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [b" %x" % rng.randrange(16**5) for _ in range(count)]


def watch(guardian: Guardian, pieces: list[bytes], prompt: bytes = PROMPT) -> Verdict | None:
    return guardian.watch(prompt).update(pieces)


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
    expected = first_stop(PROMPT, pieces, f=f, rate=str(rate))
    guardian = Guardian(f=f, rate=rate)
    whole = watch(guardian, pieces)
    assert (whole is None) == (expected is None)
    if whole is not None and expected is not None:
        assert whole.token == expected.token
        assert whole.evidence["previous_bytes"] == expected.before
        assert whole.evidence["compressed_bytes"] == expected.after
    watcher, cut, at, turn = guardian.watch(PROMPT), None, 0, 0
    while at < len(pieces) and cut is None:
        size = sizes[turn % len(sizes)]
        cut = watcher.update(pieces[at : at + size])
        at, turn = at + size, turn + 1
    assert cut == whole


def test_growth_equal_to_the_threshold_goes_on():
    """0.07 * 100 is a little more than 7 in binary; the paper's comparison is with 7."""
    assert 0.07 * 100 > 7
    assert Guardian(f=100, rate=0.07).threshold == 7
    pieces = fresh(30, seed=3)
    small = len(zlib.compress(PROMPT, 6))
    growth = len(zlib.compress(PROMPT + b"".join(pieces), 6)) - small
    assert watch(Guardian(f=30, rate=growth / 30), pieces) is None
    assert watch(Guardian(f=30, rate=(growth + 1) / 30), pieces) is not None
