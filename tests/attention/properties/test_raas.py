"""RaaS: stamps, and which pages live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from hypothesis import strategies as st

from properties.backends import raas
from properties.cases import Case, cases
from properties.feeding import Session, session
from properties.holding import holds


def stamps(s: Session, row: int, head: int, page: int) -> dict[int, int]:
    """The stamp of each page held, the largest of its tokens'."""
    kept = s.kept()[row][head]
    stamp = s.cache.layers[0].state["stamp"].data[row, head, : len(kept)].tolist()
    found: dict[int, int] = {}
    for p, x in zip(kept, stamp, strict=True):
        found[p // page] = max(x, found.get(p // page, 0))
    return found


def pages(s: Session, page: int) -> list[list[set[int]]]:
    """Pages held by [row][KV head]."""
    return [[{p // page for p in head} for head in row] for row in s.kept()]


def fed(case: Case) -> Iterator[tuple[Session, tuple[int, ...]]]:
    """The session after every forward, and what it brought."""
    with session(case.backend, case.texts()) as s:
        for counts in case.whole:
            s.feed(counts)
            yield s, counts


def first_forwards(case: Case) -> list[int]:
    """Tokens that each row brings first: its prompt, where nothing else is told."""
    return [next(n for n in row if n) for row in zip(*case.forwards, strict=True)]


SIZE = {"rows": 3, "prompt": 40, "steps": 30}


@holds(5, cases(raas(), **SIZE))
def test_stamps_never_fall(case: Case) -> None:
    """Stamps never fall, nor exceed the tokens seen."""
    page, heads = case.backend.page, range(case.shape.Hkv)
    before: list[list[dict[int, int]]] = [[{} for _ in heads] for _ in range(case.rows)]
    for s, _ in fed(case):
        for r in range(case.rows):
            for j in heads:
                now = stamps(s, r, j, page)
                assert all(now[n] >= before[r][j].get(n, 0) for n in now)
                assert max(now.values(), default=0) <= s.at[r]
                before[r][j] = now


@holds(8, cases(raas(), reveal=True, rows=2, prompt=30, steps=20))
def test_stamped_are_the_pages_that_matter(case: Case) -> None:
    """A decode step stamps the better half of the pages, or those above `alpha`, and the current.

    A page's score is the largest probability of its tokens, as outputs show it, over the group.
    """
    b, G = case.backend, case.shape.G
    reduce = {"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}
    before: list[list[dict[int, int]]] = []
    with session(b, case.texts()) as s:
        for number, counts in enumerate(case.whole):
            outs = s.feed(counts)
            heads, rows = range(case.shape.Hkv), range(case.rows)
            now = [[stamps(s, r, j, b.page) for j in heads] for r in rows]
            for r, j in product(rows, heads) if number >= len(case.forwards) else ():
                n, old = s.at[r], before[r][j]
                held = sorted({*old, (n - 1) // b.page})
                probs = outs[r][0, 0, j * G : (j + 1) * G]
                each = [probs[:, p * b.page : (p + 1) * b.page].amax(1) for p in held]
                score = reduce[b.gqa](torch.stack(each, dim=1)).tolist()
                best = sorted(zip(score, held, strict=True), reverse=True)[: max(len(held) // 2, 1)]
                if b.alpha is not None:
                    best = [(x, p) for x, p in zip(score, held, strict=True) if x > b.alpha]
                fresh = {held[-1], *(p for _, p in best)}
                assert now[r][j] == {p: n if p in fresh else old[p] for p in now[r][j]}
            before = now


@holds(8, cases(raas(), **SIZE))
def test_evicted_pages_never_return(case: Case) -> None:
    """Evicted pages never return, go whole, and are those with the oldest stamp."""
    page = case.backend.page
    ever: list[list[set[int]]] = [[set() for _ in range(case.shape.Hkv)] for _ in range(case.rows)]
    before: Any = None
    for s, counts in fed(case):
        for r, row in enumerate(pages(s, page)):
            for j, now in enumerate(row):
                begun = set(range(-(-s.at[r] // page)))
                assert not now & ever[r][j]
                ever[r][j] = begun - now
                kept = s.kept()[r][j]
                assert kept == [p for p in range(s.at[r]) if p // page in now]
        if before is not None and max(counts) == 1 and all(s.at):
            spared = [-(-n // page) for n in first_forwards(case)]
            _no_better_page_went(s, before, page, spared if case.backend.keep_prompt else None)
        before = [[stamps(s, r, j, page) for j in range(case.shape.Hkv)] for r in range(case.rows)]


def _no_better_page_went(s: Session, before: Any, page: int, spared: list[int] | None) -> None:
    """A page that stays was stamped later, or is younger; stamps only grow in a step.

    Of each row so many first pages are spared, whatever their stamps.
    """
    for r, heads in enumerate(before):
        first = 0 if spared is None else spared[r]
        for j, old in enumerate(heads):
            now = stamps(s, r, j, page)
            for gone in set(old) - set(now):
                assert all((now[n], n) > (old[gone], gone) for n in now if n >= first)


@holds(5, cases(raas(), **SIZE))
def test_the_current_page_lives(case: Case) -> None:
    """The current page lives: the one being filled is held after every forward."""
    page = case.backend.page
    for s, _ in fed(case):
        for r, row in enumerate(pages(s, page)):
            # A full page is no longer the current one.
            if s.at[r] % page:
                assert all(s.at[r] // page in now for now in row)


@st.composite
def protected(draw: Callable[..., Any]) -> Case:
    return draw(cases(raas(keep_prompt=True), least_chunk=2, **SIZE))


@holds(5, protected())
def test_prompt_pages_live_when_protected(case: Case) -> None:
    """Prompt pages live when protected, and count; untold, a prompt is a row's first forward."""
    budget = case.backend.budget
    prompts = first_forwards(case)
    for s, _ in fed(case):
        for r, row in enumerate(s.kept()):
            for kept in row:
                assert set(range(min(prompts[r], s.at[r]))) <= set(kept)
                assert len(kept) <= budget
