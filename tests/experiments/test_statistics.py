"""Wilson, McNemar and bootstrap against the definitions, not against the library they come from."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap as scipy_bootstrap

from experiments.report.statistics import NOTHING, Bootstrap, mcnemar, wilson

Z = 1.959963984540054  # the normal 97.5% point, from a table


def score_bound(solved: int, n: int, towards: float) -> float:
    """Where |p_hat - p| / sqrt(p (1 - p) / n) = z, by bisection between p_hat and 0 or 1."""
    share = solved / n
    inside, outside = share, towards
    for _ in range(200):
        p = (inside + outside) / 2
        spread = math.sqrt(p * (1 - p) / n)
        if abs(share - p) <= Z * spread:
            inside = p
        else:
            outside = p
    return inside


@pytest.mark.parametrize(("solved", "n"), [(0, 1), (1, 1), (0, 32), (1, 32), (17, 32), (200, 200)])
def test_wilson_solves_the_score_equation(solved: int, n: int) -> None:
    found = wilson(solved, n)
    assert found.estimate == solved / n
    low = 0.0 if solved == 0 else score_bound(solved, n, 0.0)
    high = 1.0 if solved == n else score_bound(solved, n, 1.0)
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(high, abs=1e-9)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_its_estimate_and_stays_a_share(counts: tuple[int, int]) -> None:
    found = wilson(*counts)
    assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_wilson_says_nothing_without_samples() -> None:
    assert wilson(0, 0) == NOTHING


@pytest.mark.parametrize(("lost", "gained"), [(0, 1), (1, 1), (5, 0), (0, 6), (8, 2), (3, 9)])
def test_mcnemar_enumerates_every_outcome(lost: int, gained: int) -> None:
    """p = share of the 2^k equally likely ways to split k differing pairs at least as lopsided."""
    k = lost + gained
    extreme = sum(
        max(heads := bin(way).count("1"), k - heads) >= max(lost, gained) for way in range(2**k)
    )
    assert mcnemar(lost, gained) == pytest.approx(extreme / 2**k)


def test_mcnemar_is_certain_of_nothing_where_no_pair_differs() -> None:
    assert mcnemar(0, 0) == 1.0


def slow_interval(values: list[float], seed: int, resamples: int) -> tuple[float, float]:
    draw = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    ordered = sorted(values)
    means = sorted(sum(ordered[i] for i in row) / len(row) for row in draw.tolist())

    def quantile(share: float) -> float:
        place = share * (resamples - 1)
        below = math.floor(place)
        return means[below] + (place - below) * (means[below + 1] - means[below])

    return quantile(0.025), quantile(0.975)


def test_bootstrap_equals_a_slow_loop() -> None:
    draw = random.Random(3)
    values = [draw.gammavariate(2, 1) for _ in range(17)]
    found = Bootstrap(5, resamples=400).mean(values)
    low, high = slow_interval(values, 5, 400)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)


def test_bootstrap_equals_scipy() -> None:
    draw = random.Random(4)
    values = sorted(draw.gammavariate(2, 1) for _ in range(32))
    theirs = scipy_bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(9)
    ).confidence_interval
    found = Bootstrap(9).mean(values)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_bootstrap_of_a_ratio_resamples_pairs() -> None:
    pairs = [(1.0, 2.0), (5.0, 4.0), (2.0, 3.0), (9.0, 5.0)]
    found = Bootstrap(1, resamples=300).ratio(pairs)
    draw = np.random.default_rng(1).integers(0, 4, (300, 4))
    ordered = sorted(pairs)
    ratios = [
        sum(ordered[i][0] for i in row) / sum(ordered[i][1] for i in row) for row in draw.tolist()
    ]
    assert found.estimate == pytest.approx(17 / 14)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(ratios, [2.5, 97.5])))


def test_bootstrap_covers_the_true_mean_about_as_often_as_it_says() -> None:
    draw = random.Random(0)
    hits = 0
    for trial in range(200):
        found = Bootstrap(trial, resamples=500).mean([draw.gauss(1.3, 0.4) for _ in range(40)])
        hits += found.low <= 1.3 <= found.high
    assert 176 <= hits <= 200  # 95% of 200 is 190; 176 is four standard deviations below


BOOT = Bootstrap(0, resamples=500)
NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=2, max_size=30), st.randoms(use_true_random=False))
def test_bootstrap_contains_the_mean_whatever_the_order(
    values: list[float], shuffle: random.Random
) -> None:
    found = BOOT.mean(values)
    assert found.low <= found.estimate <= found.high
    shuffled = values.copy()
    shuffle.shuffle(shuffled)
    assert BOOT.mean(shuffled) == found


def test_bootstrap_knows_no_spread_of_one_value_and_nothing_of_none() -> None:
    one = BOOT.mean([1.5])
    assert (one.estimate, one.low, one.high) == (1.5, None, None)
    assert BOOT.mean([]) == NOTHING
    assert BOOT.ratio([(1.0, 0.0)]) == NOTHING
    some = BOOT.ratio([(1.0, 0.0), (1.0, 2.0)])  # a resample may hold the first pair alone
    assert (some.estimate, some.low, some.high) == (1.0, 0.5, None)


def test_the_seed_decides() -> None:
    draw = random.Random(2)
    values = [draw.gammavariate(2, 1) for _ in range(20)]
    assert Bootstrap(1).mean(values) == Bootstrap(1).mean(values)
    assert Bootstrap(1).mean(values) != Bootstrap(2).mean(values)
