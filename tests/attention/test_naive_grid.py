"""The further cases are worth comparing: they can be built, are sparse, and no choice is a flip."""

from __future__ import annotations

import numpy as np
import pytest

from tests.attention.oracles.compare import STEPS, Case, decisive, run_oracle
from tests.attention.oracles.grid import (
    DTYPES,
    FAMILIES,
    HEADS,
    further_grid,
    further_sample,
    further_ties,
    further_variants,
    slow_grid,
    small_sample,
    variants,
)


def test_every_further_variant_is_in_both_grids() -> None:
    wanted = {(v.method, v.params) for v in further_variants()}
    assert {(c.method, c.params) for c in further_sample()} == wanted
    assert {(c.method, c.params) for c in further_grid()} == wanted
    names = [str(c) for c in further_grid()]
    assert len(set(names)) == len(names)


def test_the_tied_cases_keep_the_older() -> None:
    for case in further_ties():
        run = run_oracle(case)
        assert run.margin == 0
        # After the prompt: the first 16 (heavy) and the last 15 (recent but one).
        assert run.kept[0] == [[[*range(16), *range(65, 80)]] * case.heads[1]] * case.layers


def test_the_slow_grid_has_every_variant_on_every_family_and_grouping() -> None:
    """With those of the quick samples; each variant is long once, methods in all places."""
    cases = [*slow_grid(), *small_sample(), *further_sample()]
    for every, field in ((FAMILIES, "family"), (HEADS, "heads"), (DTYPES, "dtype")):
        met = {(c.method, c.params, getattr(c, field)) for c in cases}
        wanted = {(v.method, v.params) for v in (*variants(), *further_variants())}
        assert met == {(*variant, one) for variant in wanted for one in every}
    long = [c for c in slow_grid() if c.steps in (80, STEPS)]
    assert {(c.method, c.params) for c in long} == wanted
    many = {name for name in {c.method for c in long} if sum(c.method == name for c in long) > 4}
    assert {(c.method, c.heads) for c in long} >= {
        (name, heads) for name in many for heads in HEADS
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", further_sample(), ids=str)
def test_a_further_case_is_sparse_and_decisive(case: Case) -> None:
    case, _ = decisive(case)
    full = Case(**{**case.__dict__, "method": "full", "params": ()})
    gap = np.abs(np.array(run_oracle(case).logits) - np.array(run_oracle(full).logits))
    assert gap.max() > 1e-3
