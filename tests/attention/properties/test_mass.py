"""H2O: mass, and who stays."""

from __future__ import annotations

from hypothesis import strategies as st

import attention
from properties.backends import REDUCTIONS
from properties.cases import SUMS, Case, summing
from properties.feeding import Session, session
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
