"""Prompts that stay: held for ever, counted, told per row, refused where they leave no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import attention
from attention.errors import InvalidValue
from properties.backends import Draw, h2o, least_room, random, rkv, sink, snapkv, tova, window
from properties.cases import Case, cases, columns
from properties.feeding import Session, Shape, session
from properties.holding import holds

DROPPERS = (h2o, lambda: sink(positions=("cache", "absolute")), window, tova, random, rkv, snapkv)


@st.composite
def keeping(draw: Draw, method: Any, exactly: bool = False) -> Case:
    """A prompt in one forward that stays, and steps beyond the budget."""
    backend = draw(method().filter(lambda b: b.budget > least_room(b)))
    backend = replace(backend, keep_prompt=True)
    drawn = draw(cases(st.just(backend), prompt=40, steps=60, rows=3))
    lengths = drawn.prompts
    if exactly:
        lengths = [backend.budget - least_room(backend)] * len(lengths)
    return replace(drawn, forwards=(tuple(lengths),))


def check(case: Case) -> None:
    b = case.backend
    with session(b, case.texts()) as s:
        for counts in case.whole:
            s.feed(counts)
            for r, heads in enumerate(s.kept()):
                for kept in heads:
                    prompt = range(min(case.prompts[r], s.at[r]))
                    assert set(prompt) <= set(kept)
                    assert len(kept) <= b.budget
                    assert s.at[r] - 1 in kept or b.name in ("tova", "h2o", "random")
                    if s.at[r] < b.budget:
                        assert kept == list(range(s.at[r]))


@holds(6, *(keeping(method) for method in DROPPERS))
def test_no_token_of_a_prompt_is_dropped(case: Case) -> None:
    """No token of a row's prompt is ever dropped, and the budget is met all the same."""
    check(case)


@holds(3, *(keeping(method, exactly=True) for method in DROPPERS))
def test_the_longest_prompt_that_fits(case: Case) -> None:
    """A prompt that leaves no more than the method needs works; one token more is refused."""
    check(case)
    longer = replace(case, forwards=(tuple(n + 1 for n in case.prompts),))
    with (
        session(case.backend, longer.texts()) as s,
        pytest.raises(InvalidValue, match=r"prompt = .* keep_prompt drops none of them"),
    ):
        s.feed(longer.forwards[0])


@pytest.mark.parametrize("name", ["h2o", "sink", "window", "tova", "random", "rkv", "snapkv"])
def test_off_is_as_before_and_told(name: str) -> None:
    """Off it is no part of the parameters, so stored runs keep their names; on it is told."""
    off = attention.get(name, budget=32)
    on = attention.get(name, budget=32, keep_prompt=True)
    assert "keep_prompt" not in off.params()
    assert on.params() == {**off.params(), "keep_prompt": True}
    assert on.exact_until == off.exact_until


def test_a_prompt_as_long_as_its_sinks_changes_nothing() -> None:
    """The prompt takes the place of the sinks: as many of these read the same."""
    plain = attention.Sink(budget=20, sinks=9)
    case = Case(plain, Shape(layers=1, Hkv=2, G=2, D=4), forwards=((9,),), steps=40, seed=3)
    outs = []
    for backend in (case.backend, attention.Sink(budget=20, sinks=2, keep_prompt=True)):
        with session(backend, case.texts()) as s:
            outs.append([s.feed(counts) for counts in case.whole])
    for one, other in zip(*outs, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("width", [1, 3, 12])
@pytest.mark.parametrize(
    "name", ["raas", "h2o", "sink", "window", "tova", "random", "rkv", "snapkv"]
)
def test_prompts_that_are_told_may_be_read_in_parts(name: str, width: int) -> None:
    """Ragged rows, left padded: the shorter is all padding at first, and as if it were alone."""
    backend = attention.get(name, budget=24, keep_prompt=True, **LESS.get(name, {}))
    lengths = [12, 8]
    forwards = columns(lengths, (width,) * (12 // width))
    shape = Shape(layers=1, Hkv=2, G=2, D=4)
    case = Case(backend, shape, forwards=forwards, steps=30, seed=3)
    with session(backend, case.texts()) as s:
        s.cache = s.cache.new(prompts=lengths)
        outs = [s.feed(counts) for counts in case.whole]
        for r, (row, n) in enumerate(zip(s.kept(), lengths, strict=True)):
            one = Session(s.cache.new(prompts=[n]), shape, [case.texts()[r]])
            alone = [one.feed([counts[r]])[0] for counts in case.whole if counts[r]]
            together = torch.cat([out[r] for out in outs], dim=1)
            assert (together - torch.cat(alone, dim=1)).abs().max() <= 1e-9
            assert one.kept() == [row]
            for kept in row:
                assert set(range(n)) <= set(kept)
                assert len(kept) <= 24
        told = s.cache.new(prompts=[30, 8])
        s = Session(told, shape, case.texts())
        with pytest.raises(InvalidValue, match="prompt = '30 tokens'"):
            s.feed([1, 1])


LESS: dict[str, dict[str, Any]] = {"rkv": {"window": 2}, "raas": {"page": 4}}
