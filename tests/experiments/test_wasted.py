"""Wasted tokens against their definitions, counted by trying every period and every tail."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Trace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.store.samples import repetition
from experiments.store.samples import replay as of_trace
from experiments.store.samples.sample import Sample
from lil import Verdict
from lil.detectors.agreement import Agreement

loops = st.builds(
    lambda head, block, length: head + (block * 300)[:length],
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(0, 200),
)


PLAIN = Sample("m", "d", "i", 0, "h2o", backend_params=(), budget=1, penalty="none")


@given(loops)
def test_exact(text: list[int]) -> None:
    n, most = len(text), 0
    for period in range(1, n // 2 + 1):
        start = n - period
        while start > 0 and text[start - 1] == text[start - 1 + period]:
            start -= 1
        if n - start >= 2 * period:
            most = max(most, n - start - period)
    assert repetition.exact(text) == most


@given(loops, st.sets(st.integers(0, 300), max_size=4))
def test_tolerant(text: list[int], changed: set[int]) -> None:
    text = [9 if at in changed else token for at, token in enumerate(text)]
    n = len(text)

    def again(end: int) -> bool:
        passage = text[end - 16 : end]
        return end >= 16 and any(text[e - 16 : e] == passage for e in range(16, end))

    hits = [again(end) for end in range(1, n + 1)]
    tails = [m for m in range(100, n + 1) if 20 * sum(hits[n - m :]) >= 19 * m]
    assert repetition.tolerant(text) == max(tails, default=0)


def test_the_first_trial_answer_that_is_right() -> None:
    right, wrong = (Agreement().number(Trace(answer=x)) for x in (b" 42\n", b"7"))
    numbers = ((10, wrong), (20, right), (30, wrong), (40, right))
    trace = Trace(signals={"agreement-64-8-cue": numbers, "margin": ((5, right),)})
    sample = replace(PLAIN, correct=True, answer="42")
    assert of_trace._first_right(sample, trace) == 20
    for other in ({"correct": False}, {"answer": None}, {"answer": "43"}):
        assert of_trace._first_right(replace(sample, **other), trace) is None


@pytest.mark.parametrize(
    ("at", "loop", "tail"), [(100, 0, 0), (101, 0, 0), (160, 0, 50), (170, 10, 60), (300, 140, 190)]
)
def test_a_verdict_leaves_what_was_wasted_before_it(at: int, loop: int, tail: int) -> None:
    plain = replace(PLAIN, tokens=300, wasted_loop=140, wasted_tail=190)
    left = of_trace._with_waste_left(plain, plain, Verdict("cycle", at, {}))
    assert (left.wasted_loop, left.wasted_tail) == (loop, tail)
