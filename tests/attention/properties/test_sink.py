"""Sink: which tokens stay, and where they are seen."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

import attention
from properties.backends import sink, window
from properties.cases import Case, cases
from properties.feeding import play, session
from properties.holding import holds

SIZE = {"rows": 3, "steps": 24}


@holds(5, cases(sink(), **SIZE))
def test_kept_positions_are_exact(case: Case) -> None:
    """Kept positions: the first `sinks` and the last budget - sinks, in all heads, at any time."""
    b = case.backend
    with session(b, case.texts()) as s:
        for counts in case.whole:
            s.feed(counts)
            for n, kept in zip(s.at, s.kept(), strict=True):
                last = range(max(n - b.budget + b.sinks, min(b.sinks, n)), n)
                want = [*range(min(b.sinks, n)), *last]
                assert kept == [want] * case.shape.Hkv
            if s.cache.decoded:
                # Nothing was read in a row that is still all padding.
                for kept, read in zip(s.kept(), s.read(), strict=True):
                    assert read == [kept[0]] * len(read)


def windows() -> st.SearchStrategy[attention.Backend]:
    """`window`, and `sink` without sinks in both modes."""
    bare = sink(positions=("cache", "absolute")).map(lambda b: replace(b, sinks=0))
    return window() | bare


@holds(5, cases(windows(), **SIZE))
def test_without_sinks_it_is_a_sliding_window(case: Case) -> None:
    """sinks = 0: every decode query is softmax attention over the last `budget` tokens."""
    texts, budget, steps = case.texts(), case.backend.budget, case.steps
    outs = play(case.backend, texts, case.whole)
    for text, out in zip(texts, outs, strict=True):
        for query in range(len(text) - steps, len(text)):
            last = range(max(query + 1 - budget, 0), query + 1)
            for h in range(case.shape.Hq):
                probs = text.logits(0, h, query, last).softmax(0)
                want = probs @ text.v[0, h // case.shape.G, list(last)]
                assert (out[0, query, h] - want).abs().max() <= 1e-9


@holds(5, cases(sink(positions=("cache",)), **SIZE))
def test_the_position_modes_agree_until_the_first_eviction(case: Case) -> None:
    """The two position modes agree until then, and differ from then on if sinks are turned."""
    b, texts = case.backend, case.texts()
    modes = [play(replace(b, positions=x), texts, case.whole) for x in ("cache", "absolute")]
    for one, other, prompt in zip(*modes, case.prompts, strict=True):
        gap = (one - other).abs().amax((0, 2, 3))
        # No token is dropped before a prompt that came at once has been read.
        exact = max(b.budget, prompt if len(case.forwards) == 1 else 0)
        assert (gap[:exact] <= 1e-9).all()
        if b.sinks:
            assert (gap[max(exact, prompt) :] > 1e-12).all()
        else:
            assert (gap <= 1e-9).all()
