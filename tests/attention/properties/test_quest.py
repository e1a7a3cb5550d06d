"""Quest: bounds and the choice of pages, beside `test_quest.py` one folder up.

That one looks at the layer's own bounds: they are no less than any q.k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import attention
from properties.backends import REDUCTIONS, quest
from properties.cases import Case, cases, shapes
from properties.feeding import Text, session
from properties.holding import holds

SIZE = {"rows": 3, "prompt": 50, "steps": 25}


def reads(case: Case, texts: list[Text], backend: Any = None) -> list[Any]:
    """What every decode step reads, by [step][row][query head]."""
    found = []
    with session(case.backend if backend is None else backend, texts) as s:
        for number, counts in enumerate(case.whole):
            s.feed(counts)
            if number >= len(case.forwards):
                found.append(s.read())
    return found


def reduced(each: Tensor, G: int, gqa: str) -> Tensor:
    """(Hq, ...) per query head to what ranks for each of them."""
    grouped = each.unflatten(0, (-1, G))
    if gqa == "query_head":
        return each
    one = grouped.amax(1) if gqa == "max" else grouped.sum(1)
    return one.repeat_interleave(G, 0)


def page_bounds(text: Text, n: int, page: int) -> Tensor:
    """sum of max(q max_k, q min_k) for the query of token n - 1, (Hq, pages), by the definition."""
    q, k = (x[0] for x in text.roped)
    k = k.repeat_interleave(text.shape.G, 0)
    pages = [k[:, i : min(i + page, n)] for i in range(0, n, page)]
    now = q[:, n - 1]
    return torch.stack(
        [torch.maximum(now * p.amax(1), now * p.amin(1)).sum(-1) for p in pages], dim=1
    )


@holds(6, cases(quest(rule="kernel"), **SIZE))
def test_the_pages_read_are_those_of_bounds_recomputed(case: Case) -> None:
    """Incremental bounds = recomputed: pages are those of all keys fed, however they were fed."""
    b, texts = case.backend, case.texts()
    quota = b.budget // b.page
    for step, rows in enumerate(reads(case, texts)):
        for r, heads in enumerate(rows):
            n = case.prompts[r] + step + 1
            last = (n - 1) // b.page
            rank = reduced(page_bounds(texts[r], n, b.page), case.shape.G, b.gqa)[:, :last]
            for h, tokens in enumerate(heads):
                best = rank[h].topk(min(quota - 1, last)).indices.tolist()
                assert tokens == [t for t in range(n) if t // b.page in {*best, last}]


@holds(6, cases(quest(page=1, rule="kernel"), shape=shapes(G=1), **SIZE))
def test_pages_of_one_token_are_what_oracle_reads(case: Case) -> None:
    """page = 1 without groups and dense layers picks `oracle`'s tokens, the current one too."""
    texts, budget = case.texts(), case.backend.budget
    want = reads(case, texts, attention.Oracle(budget=budget, gqa=REDUCTIONS[case.seed % 3]))
    assert reads(case, texts) == want


@holds(6, cases(quest(page=1, rule="kernel"), **SIZE))
def test_pages_of_one_token_are_the_best_of_the_reduced_logits(case: Case) -> None:
    """page = 1: the tokens with the largest q.k, reduced over the group, and the current one.

    Quest reduces a bound, so that where a sum or mean counts it adds max(q k, q k) = q.k itself.
    """
    texts, b = case.texts(), case.backend
    for step, rows in enumerate(reads(case, texts)):
        for r, heads in enumerate(rows):
            n = case.prompts[r] + step + 1
            every = torch.stack(
                [texts[r].logits(0, h, n - 1, range(n - 1)) for h in range(case.shape.Hq)]
            )
            rank = reduced(every, case.shape.G, b.gqa)
            for h, tokens in enumerate(heads):
                best = rank[h].topk(min(b.budget - 1, n - 1)).indices.tolist()
                assert tokens == sorted([*best, n - 1])


@st.composite
def scaled(draw: Callable[..., Any]) -> tuple[Case, float]:
    return draw(cases(quest(rule="kernel"), **SIZE)), draw(st.floats(0.01, 100))


@holds(6, scaled())
def test_neither_scale_nor_order_in_a_page_changes_the_choice(how: tuple[Case, float]) -> None:
    """Selection is unchanged by scaling q and by permuting the keys of a page."""
    case, factor = how
    texts, page = case.texts(), case.backend.page
    changed = []
    for text in texts:
        q, k = text.roped
        order = [
            i
            for start in range(0, len(text), page)
            for i in reversed(range(start, min(start + page, len(text))))
        ]
        changed.append(replace(text, q=q * factor, k=k[:, :, order], turned=False))
    assert reads(case, changed) == reads(case, texts)


@st.composite
def two_budgets(draw: Callable[..., Any]) -> tuple[Case, attention.Quest]:
    case = draw(cases(quest(rule="kernel"), **SIZE))
    more = draw(st.integers(1, 6)) * case.backend.page
    return case, replace(case.backend, budget=case.backend.budget + more)


@holds(6, two_budgets())
def test_larger_budgets_select_supersets(how: tuple[Case, attention.Quest]) -> None:
    """Larger budgets select supersets, in every head and step."""
    case, larger = how
    texts = case.texts()
    for few, many in zip(reads(case, texts), reads(case, texts, larger), strict=True):
        for one, other in zip(few, many, strict=True):
            assert all(set(a) <= set(b) for a, b in zip(one, other, strict=True))
