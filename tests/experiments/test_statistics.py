"""What the reports compute themselves: Tango, swaps of problems, bootstrap-t.

scipy is the oracle of percentile intervals.
"""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import bootstrap as scipy_bootstrap

from experiments.report.statistics import (
    NOTHING,
    Bootstrap,
    Interval,
    change_p,
    corrected,
    effective,
    mcnemar,
    sign_flips,
    tango,
    wilson,
)

Z = 1.959963984540054  # the normal 97.5% point, from a table


def test_library_intervals_and_tests_take_what_we_have() -> None:
    assert wilson(0, 0) == NOTHING
    share = wilson(3.5, 12.25)  # samples of one problem count as fewer
    assert (share.low, share.high) == pytest.approx((0.110294, 0.563446), abs=1e-5)
    assert wilson(10, 10).high == 1
    assert mcnemar(0, 0) == 1
    assert mcnemar(4, 1) == pytest.approx(12 / 32)
    assert corrected([], "holm") == []
    assert corrected([0.01, 0.04, 0.2], "holm") == pytest.approx([0.03, 0.08, 0.2])
    assert corrected([0.01, 0.04, 0.2], "fdr_bh") == pytest.approx([0.03, 0.06, 0.2])


def score(lost: int, gained: int, n: int, delta: float) -> float:
    """The score test of a change by its definition: the likeliest shares are searched for."""
    change = (gained - lost) / n

    def unlikely(share_lost: float) -> float:
        share_gained = share_lost + delta
        same = 1 - share_lost - share_gained
        terms = ((lost, share_lost), (gained, share_gained), (n - lost - gained, same))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in terms if k)

    least, most = max(0.0, -delta), (1 - delta) / 2
    share = minimize_scalar(
        unlikely, bounds=(least, most), method="bounded", options={"xatol": 1e-12}
    ).x
    return (change - delta) / math.sqrt((2 * share + delta - delta * delta) / n)


@pytest.mark.parametrize(("lost", "gained", "n"), [(5, 1, 30), (3, 3, 25), (0, 4, 40), (9, 2, 20)])
def test_tango_is_all_changes_that_the_score_test_does_not_reject(
    lost: int, gained: int, n: int
) -> None:
    change = tango(lost, gained, n)
    assert change.estimate == (gained - lost) / n
    assert score(lost, gained, n, change.low) == pytest.approx(Z, abs=1e-4)
    assert score(lost, gained, n, change.high) == pytest.approx(-Z, abs=1e-4)


def test_tango_at_its_ends() -> None:
    assert tango(0, 0, 0) == NOTHING
    assert tango(7, 0, 7).low == -1
    assert tango(0, 7, 7).high == 1
    nothing = tango(0, 0, 25)
    assert -nothing.low == pytest.approx(nothing.high)
    assert nothing.high == pytest.approx(Z * Z / (25 + Z * Z))


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=9))
def test_sign_flips_try_every_sign(changes: list[int]) -> None:
    signs = itertools.product((1, -1), repeat=len(changes))
    sums = [abs(sum(s * c for s, c in zip(flip, changes, strict=True))) for flip in signs]
    expected = sum(value >= abs(sum(changes)) for value in sums) / len(sums)
    assert sign_flips([float(change) for change in changes], 0) == pytest.approx(expected)


def test_many_sign_flips_are_drawn_and_equal_the_exact_test() -> None:
    lost, gained = 18, 6
    p = sign_flips([-1.0] * lost + [1.0] * gained, seed=3)
    assert p == pytest.approx(mcnemar(lost, gained), abs=0.003)


def test_samples_of_a_problem_count_as_one() -> None:
    single = [(str(i), -1) for i in range(6)]
    assert change_p(single, 0) == pytest.approx(2 / 64)
    assert change_p([(problem, -1) for problem, _ in single for _ in range(4)], 0) == 2 / 64
    assert change_p([("a", -1)] * 6, 0) == 1
    assert effective([1.0, 1.0, 0.0, 0.0], list("aabb")) == pytest.approx(2)
    assert effective([1.0, 0.0, 1.0, 0.0], list("aabb")) == 4
    assert effective([1.0, 0.0], list("ab")) == 2


def test_percentile_intervals_are_scipys() -> None:
    draw = random.Random(4)
    values = sorted(draw.gammavariate(2, 1) for _ in range(32))
    scipys = scipy_bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(9)
    ).confidence_interval
    mean = Bootstrap(9).mean(random.sample(values, len(values)))
    assert (mean.low, mean.high) == pytest.approx((scipys.low, scipys.high), rel=1e-12)


def test_a_ratio_where_nothing_is_known() -> None:
    bootstrap = Bootstrap(0, resamples=300)
    assert bootstrap.ratio([]) == bootstrap.ratio([(1.0, 0.0)]) == NOTHING
    assert bootstrap.ratio([(1.0, 2.0)]) == Interval(0.5)
    rare = bootstrap.ratio([(1.0, 0.0)] * 9 + [(1.0, 1.0)])  # resamples without any in it
    assert (rare.estimate, rare.high) == (10, None)
    assert bootstrap.log_ratio([(1.0, 0.0, 1.0, 1.0)] * 9, 9) == NOTHING
    assert bootstrap.log_mean([0.1] * 5).low is None  # fewer than six differ
    assert bootstrap.log_mean([0.5] * 9) == Interval(*[pytest.approx(math.exp(0.5))] * 3)
    assert bootstrap.log_mean([0.7, -0.7] * 9, most=0.01).high == pytest.approx(math.exp(0.01))


def test_studentised_intervals_cover_skewed_lengths() -> None:
    draw = random.Random(1)
    means = ratios = 0
    for trial in range(200):
        bootstrap = Bootstrap(trial, resamples=400)
        lengths = [draw.lognormvariate(0, 0.9) for _ in range(32)]
        interval = bootstrap.skewed_mean([(length, 1.0) for length in lengths])
        means += interval.low <= math.exp(0.9**2 / 2) <= interval.high
        sides = [(draw.gammavariate(2, 3), float(draw.random() < 0.6)) for _ in range(60)]
        rows = [(*a, *b) for a, b in zip(sides[:30], sides[30:], strict=True)]
        interval = bootstrap.log_ratio(rows, len(rows))
        ratios += interval.low <= 1 <= interval.high
    assert means >= 178  # 95% of 200 is 190
    assert ratios >= 178
