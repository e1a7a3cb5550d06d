"""H2O: mass, and who stays."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

import attention
from properties.backends import REDUCTIONS, h2o
from properties.cases import SUMS, Case, cases, summing
from properties.feeding import Session, play, session
from properties.holding import holds


def scores(s: Session, row: int, head: int) -> dict[int, float]:
    """The sum over the group that each slot has collected, by position."""
    state = s.cache.layers[0].state
    position = state["position"].data[row, head].tolist()
    score = state["score"].data[row, head].double()
    each = (score.sum(-1) if score.ndim > 1 else score).tolist()
    return {p: x for p, x in zip(position, each, strict=True) if p >= 0}


def collecting(n: int) -> st.SearchStrategy[attention.Backend]:
    """What cuts no prompt of n tokens, but soon drops tokens."""
    budgets = st.integers(n + 1, n + 30)
    return st.builds(attention.H2O, budget=budgets, gqa=st.sampled_from(REDUCTIONS))


@holds(4, summing(collecting))
def test_mass_grows_by_the_number_of_queries(case: Case) -> None:
    """Score mass grows by exactly T per head and forward, G T with `sum`, whatever the dtype.

    Contract 7: accumulators are wide. At the budget the dropped token takes along what it had.
    """
    tolerance, G, budget = SUMS[case.shape.dtype], case.shape.G, case.backend.budget
    with session(case.backend, case.texts()) as s:
        before = [[{}] * case.shape.Hkv for _ in range(case.rows)]
        for counts in case.whole:
            s.feed(counts)
            for r, n in enumerate(s.at):
                for j in range(case.shape.Hkv if n else 0):
                    now, old = scores(s, r, j), before[r][j]
                    grown = sum(now.values()) - sum(old[p] for p in now if p in old)
                    assert abs(grown - G * counts[r]) <= tolerance * G * n
                    if n < budget:
                        assert abs(sum(now.values()) - G * n) <= tolerance * G * n
                    before[r][j] = now


def ranking(backend: attention.H2O, collected: Tensor, n: int) -> Tensor:
    """Scores (heads of a set, tokens) reduced to one, as the options say."""
    one = collected.amax(0) if backend.gqa == "max" else collected.sum(0)
    if backend.normalise == "age":
        one = one / (n - torch.arange(len(one))).clamp(min=1)
    return one


@holds(6, cases(h2o(), reveal=True, rows=3, prompt=40, steps=24))
def test_who_stays_and_who_goes(case: Case) -> None:
    """kept(t+1) is a subset of kept(t) + new, and no evicted candidate outscores a kept heavy one.

    Scores are added up here from the probabilities that the outputs show, options included.
    """
    b, shape = case.backend, case.shape
    heavy = b.params()["heavy"]
    sets = shape.Hq if b.gqa == "query_head" else shape.Hkv
    collected = torch.zeros(case.rows, sets, shape.Hq // sets, shape.D, dtype=torch.float64)
    with session(b, case.texts()) as s:
        held: list[list[list[int]]] = [[[]] * sets for _ in range(case.rows)]
        for counts in case.whole:
            outs = s.feed(counts)
            for r, (out, n) in enumerate(zip(outs, s.at, strict=True)):
                # A row's prompt is its first forward.
                if b.score_from_prefill or n > counts[r]:
                    for probs in out[0]:  # query by query
                        collected[r] *= b.decay
                        collected[r] += probs.unflatten(0, (sets, -1))
                for j, kept in enumerate(s.kept()[r]):
                    candidates = {*held[r][j], *range(n - counts[r], n)}
                    assert set(kept) <= candidates
                    assert len(kept) == min(len(candidates), b.budget - 1)
                    oldest_recent = n - (b.budget - heavy) + 1
                    gone = candidates - set(kept)
                    assert all(p < oldest_recent for p in gone)
                    score = ranking(b, collected[r, j], n)
                    stayed = [p for p in kept if p < oldest_recent]
                    if gone and stayed:
                        assert score[list(gone)].max() <= score[stayed].min() + 1e-12
                    held[r][j] = kept


@holds(6, cases(h2o(heavy=0), rows=3, least_chunk=60, steps=30))
def test_without_heavy_tokens_it_is_a_window(case: Case) -> None:
    """heavy = 0, with any options, reads what `window` reads."""
    texts = case.texts()
    want = play(attention.Window(budget=case.backend.budget), texts, case.whole)
    for one, other in zip(play(case.backend, texts, case.whole), want, strict=True):
        assert (one - other).abs().max() <= 1e-9


@holds(6, cases(h2o(positions="rolled"), rows=3, steps=30))
def test_rolled_positions_agree_until_the_first_eviction(case: Case) -> None:
    """Distances inside the cache are true distances as long as nothing is missing."""
    b, texts = case.backend, case.texts()
    absolute = play(replace(b, positions="absolute"), texts, case.whole)
    for one, other in zip(play(b, texts, case.whole), absolute, strict=True):
        assert (one - other)[:, : b.budget].abs().max() <= 1e-9
