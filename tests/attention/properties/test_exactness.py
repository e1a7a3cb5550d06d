"""Where a method is full attention, and that the way a prompt is fed does not matter there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

from attention import methods
from properties.backends import BACKENDS, KEEP_ALL, METHODS, NOISELESS
from properties.cases import Case, cases, chunks, columns, each, of, shapes
from properties.feeding import play
from properties.holding import holds

TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-9}


def test_every_method_is_drawn() -> None:
    """What the package ships has a strategy in `backends.py`."""
    assert sorted(METHODS) == methods.names()


EXACT = {"shape": st.sampled_from(tuple(TOLERANCE)).flatmap(lambda d: shapes(dtype=d))}


@holds(2, *each(NOISELESS, lambda method: of(method, **EXACT)))
def test_exact_until_is_honest(case: Case) -> None:
    """Contract 3: full attention while at most `exact_until` are seen, and in a first forward."""
    texts, until = case.texts(), case.backend.exact_until
    outs = play(case.backend, texts, case.whole)
    for r, (out, own) in enumerate(zip(outs, texts, strict=True)):
        seen = list(accumulate(counts[r] for counts in case.whole))
        n = max(min(until, seen[-1]), next(x for x in seen if x))
        if getattr(case.backend, "prefill", "dense") != "dense":
            # A sparse prefill that goes beyond is sparse for its first tokens, too.
            n = max((x for x in seen if x <= until), default=0)
        gap = (out - own.exact)[:, : int(n)].abs()
        assert not gap.numel() or gap.max() <= TOLERANCE[case.shape.dtype]


@st.composite
def fed_in_two_ways(
    draw: Callable[..., Any], method: str
) -> tuple[Case, tuple[tuple[int, ...], ...]]:
    """A case of prompts no longer than `exact_until`, and other chunks of them."""
    case = draw(of(method, rows=3, steps=25))
    lengths = [min(n, case.backend.exact_until) for n in case.prompts]
    assume(all(lengths))
    alone = draw(st.booleans())
    widths = (1,) * max(lengths) if alone else draw(chunks(max(lengths)))
    whole = columns(lengths, (max(lengths),))
    return replace(case, forwards=whole), columns(lengths, widths)


@holds(1, *each(NOISELESS, fed_in_two_ways))
def test_a_prompt_is_its_chunks_while_exact(
    how: tuple[Case, tuple[tuple[int, ...], ...]],
) -> None:
    """One prefill = chunked = token by token while n <= exact_until.

    And ever after, but for methods that treat a prompt apart: a token fed alone is none.
    """
    case, chunked = how
    texts, steps, b = case.texts(), case.whole[1:], case.backend
    keeps = getattr(b, "keep_prompt", False)
    prompt_matters = b.name == "raas" or keeps or not getattr(b, "score_from_prefill", True)
    want = play(b, texts, case.whole)
    for left, right in zip(want, play(b, texts, (*chunked, *steps)), strict=True):
        n = min(b.exact_until, left.shape[1]) if prompt_matters else left.shape[1]
        assert (left - right)[:, :n].abs().max() <= 1e-9


def dense(method: str) -> st.SearchStrategy[Case]:
    """Cases of chunks of more than one token, after which nothing was chosen."""
    return cases(BACKENDS[method](), rows=3, least_chunk=2, steps=20)


@holds(1, *each(KEEP_ALL, dense))
def test_a_prompt_is_its_chunks_always_where_all_is_kept(case: Case) -> None:
    """One prefill = chunked always for methods that keep all.

    In chunks of more than one token, as one is a decode step, which reads less.
    """
    assume(all(max(counts) > 1 for counts in case.forwards))
    texts = case.texts()
    chunked = play(case.backend, texts, case.whole)
    whole = columns(case.prompts, (max(case.prompts),))
    steps = case.whole[len(case.forwards) :]
    for left, right, own, n in zip(
        chunked, play(case.backend, texts, (*whole, *steps)), texts, case.prompts, strict=True
    ):
        assert (left - right).abs().max() <= 1e-9
        exact = (left - own.exact)[:, :n].abs().max() <= 1e-9
        assert exact == (case.backend.name in NOISELESS)
