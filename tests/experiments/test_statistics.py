"""Wilson, McNemar and bootstrap against the definitions, not against the library they come from."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import t as student

from experiments.report import bootstrap
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import (
    NOTHING,
    Interval,
    benjamini_hochberg,
    change_p,
    effective,
    holm,
    mcnemar,
    sign_flips,
    swaps,
    tango,
    wilson,
)

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


def score_statistic(lost: int, gained: int, n: int, delta: float) -> float:
    """The score test of a paired change, its nuisance share found by maximising the likelihood."""

    def unlikely(share: float) -> float:  # of pairs lost; gained has share + delta
        cells = ((lost, share), (gained, share + delta), (n - lost - gained, 1 - 2 * share - delta))
        return -sum(count * math.log(max(p, 1e-300)) for count, p in cells if count)

    least, most = max(0.0, -delta), (1 - delta) / 2
    found = minimize_scalar(unlikely, bounds=(least, most), method="bounded",
                            options={"xatol": 1e-13})  # fmt: skip
    share = min((found.x, least, most), key=unlikely)
    return (gained - lost - n * delta) / math.sqrt(n * (2 * share + delta - delta**2))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 60))
def test_tango_is_what_the_score_test_does_not_reject(lost: int, gained: int, same: int) -> None:
    n = lost + gained + same
    found = tango(lost, gained, n)
    if n == 0:
        assert found == NOTHING
        return
    assert found.estimate == (gained - lost) / n
    assert found.low is not None
    assert found.high is not None
    assert -1 <= found.low <= found.estimate <= found.high <= 1
    for bound, side in ((found.low, 1), (found.high, -1)):
        if abs(bound) < 1:
            assert score_statistic(lost, gained, n, bound) == pytest.approx(
                1.959964 * side, abs=1e-3
            )
    mirrored = tango(gained, lost, n)
    assert mirrored.low == pytest.approx(-found.high, abs=1e-9)


def test_tango_as_published() -> None:
    """Tango (1998): 21 patients before and after, 12 and 1 the same, 1 and 7 changed."""
    found = tango(7, 1, 21)
    assert (found.low, found.high) == (
        pytest.approx(-0.517, abs=1e-3),
        pytest.approx(-0.026, abs=1e-3),
    )


def test_sign_flips_are_mcnemar_where_each_problem_has_one_sample() -> None:
    for lost, gained in ((0, 0), (1, 0), (5, 1), (9, 2), (4, 4)):
        changed = [-1] * lost + [1] * gained + [0] * 3
        assert sign_flips(changed, seed=0) == pytest.approx(mcnemar(lost, gained))


def test_sign_flips_enumerate_every_outcome() -> None:
    changed = [2, -1, 3, 1, 0]
    signs = itertools.product((-1, 1), repeat=4)
    sums = [sum(s * one for s, one in zip(sign, changed[:4], strict=True)) for sign in signs]
    expected = 2 * min(
        sum(total >= sum(changed) for total in sums) / 16,
        sum(total <= sum(changed) for total in sums) / 16,
    )
    assert sign_flips(changed, seed=0) == pytest.approx(min(1.0, expected))


def test_samples_of_a_problem_count_by_how_alike_they_are() -> None:
    problems = [str(i // 4) for i in range(32)]
    assert effective([1.0] * 32, problems) == 8
    assert effective([float(i // 4 % 2) for i in range(32)], problems) == 8
    assert effective([float(i % 2) for i in range(32)], problems) == 32
    assert effective([1.0, 0.0, 1.0], ["a", "b", "c"]) == 3
    assert effective([], []) == 0
    mixed = [float((i * 7 + i // 4) % 3 == 0) for i in range(32)]
    assert 8 <= effective(mixed, problems) <= 32


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_the_closed_test_of_bonferroni(p: list[float]) -> None:
    """A hypothesis is rejected where Bonferroni rejects every set of hypotheses with it in."""
    ordered = sorted(p)
    for one, after in zip(p, holm(p), strict=True):
        rank = ordered.index(one)
        expected = max(
            (min(1.0, (len(p) - at) * ordered[at]) for at in range(rank + 1)), default=1.0
        )
        assert after == pytest.approx(expected)


def test_p_of_changes_takes_samples_of_a_problem_together() -> None:
    alone = [(str(i), -1) for i in range(7)] + [("x", 1), ("y", 0)]
    assert change_p(alone, 0) == mcnemar(7, 1)
    together = [(str(i), -1) for i in range(7) for _ in range(4)] + [("x", 1), ("x", 1), ("y", 0)]
    assert change_p(together, 0) == pytest.approx(2 * 2 / 2**8)
    assert change_p([], 0) == 1


# ---------------------------------------------------------------- ratios, by their logs


def test_sign_flips_of_logs_enumerate_every_outcome() -> None:
    changed = [0.31, -0.12, 0.0, 0.5, 0.07, 0.693]
    differing = [one for one in changed if one]
    found = abs(sum(differing))
    signs = list(itertools.product((-1, 1), repeat=len(differing)))
    as_far = sum(
        abs(sum(s * one for s, one in zip(sign, differing, strict=True))) >= found - 1e-12
        for sign in signs
    )
    assert sign_flips(changed, seed=0) == pytest.approx(as_far / len(signs))


def test_many_sign_flips_are_drawn_and_never_say_zero() -> None:
    assert sign_flips([1.0] * 40, seed=0) == pytest.approx(1e-5, rel=1e-3)
    draw = random.Random(1)
    changed = [draw.gauss(0.2, 1) for _ in range(30)]
    normal = math.erfc(abs(sum(changed)) / math.sqrt(2 * sum(one * one for one in changed)))
    assert sign_flips(changed, seed=0) == pytest.approx(normal, abs=0.02)


def test_sides_of_problems_are_swapped_whatever_is_made_of_their_sums() -> None:
    draw = random.Random(5)
    problems = [[draw.uniform(50, 150), float(draw.random() < 0.7)] for _ in range(14)]
    pairs = np.asarray([problems[at] + problems[at + 7] for at in range(7)])

    def number(a: float, b: float, c: float, d: float) -> float:
        if not b or not d:
            return math.inf
        return abs(math.log(a / b) - math.log(c / d))

    def sums(swapped: tuple[bool, ...]) -> list[float]:
        kept = [
            [*row[2:], *row[:2]] if swap else list(row)
            for row, swap in zip(pairs.tolist(), swapped, strict=True)
        ]
        return [sum(column) for column in zip(*kept, strict=True)]

    found = number(*sums((False,) * 7))
    ways = list(itertools.product((False, True), repeat=7))
    as_far = sum(number(*sums(way)) >= found - 1e-12 for way in ways)

    def logs(of: np.ndarray) -> np.ndarray:
        a, b, c, d = np.log(of)
        return np.asarray(a - b - c + d)

    assert swaps(pairs, logs, seed=0) == pytest.approx(as_far / len(ways))


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_benjamini_hochberg_keeps_what_its_definition_keeps(thousandths: list[int]) -> None:
    """At every level: all up to the largest p that is at most its rank's share of the level."""
    p = [one / 1000 for one in thousandths]
    after = benjamini_hochberg(p)
    for level in {*p, *(min(1.0, one * len(p)) for one in p), 0.05}:
        ordered = sorted(p)
        fit = [at for at, one in enumerate(ordered, 1) if one * len(p) <= at * level + 1e-15]
        most = ordered[fit[-1] - 1] if fit else -1.0
        for one, adjusted in zip(p, after, strict=True):
            assert (one <= most) == (adjusted <= level + 1e-12)


def slow_t(values: list[float], seed: int, resamples: int, most: float) -> tuple[float, float]:
    """A bootstrap-t interval of a mean by its definition, with Student's beneath it."""
    n, ordered = len(values), sorted(values)

    def spread(some: list[float]) -> float:
        mean = sum(some) / n
        return math.sqrt(sum((one - mean) ** 2 for one in some) / (n - 1) / n)

    mean, error = sum(values) / n, spread(values)
    draw = np.random.default_rng(seed).integers(0, n, (resamples, n))
    far = []
    for row in draw.tolist():
        some = [ordered[at] for at in row]
        far.append((sum(some) / n - mean) / max(spread(some), error / 3))
    far.sort()
    differing = sum(one != 0 for one in values)
    least = student.ppf(0.975, differing - 1)
    high = far[math.ceil(0.975 * (resamples - 1))]
    low = far[math.floor(0.025 * (resamples - 1))]
    return (
        math.exp(max(-most, mean - max(high, least) * error)),
        math.exp(min(most, mean + max(-low, least) * error)),
    )


def test_the_interval_of_a_mean_log_equals_a_slow_loop() -> None:
    draw = random.Random(7)
    for some in (
        [draw.gauss(0.1, 0.4) for _ in range(17)],
        [0.0] * 12 + [0.69, 0.3, 0.1, 0.69, 0.2, -0.4, 0.69],
        [0.69] * 12 + [0.0, 0.1],
    ):
        logs = [max(-0.69, min(0.69, one)) for one in some]
        found = Bootstrap(3, resamples=400).log_mean(logs, 0.69)
        assert found.estimate == pytest.approx(math.exp(sum(logs) / len(logs)))
        assert (found.low, found.high) == pytest.approx(slow_t(logs, 3, 400, 0.69), rel=1e-6)


def test_the_error_of_a_cost_ratio_is_the_jackknife_s() -> None:
    """Derivatives of the log by each sum: the same spread as leaving one problem out in turn."""
    draw = random.Random(9)
    rows = [
        (draw.uniform(50, 150), 1.0 if draw.random() < 0.8 else 0.0, draw.uniform(80, 120), 1.0)
        for _ in range(400)
    ]

    def log_ratio(some: list[tuple[float, float, float, float]]) -> float:
        a, b, c, d = (sum(column) for column in zip(*some, strict=True))
        return math.log(a / b / (c / d))

    n, whole = len(rows), log_ratio(rows)
    left = [log_ratio(rows[:at] + rows[at + 1 :]) for at in range(n)]
    mean = sum(left) / n
    error = math.sqrt((n - 1) / n * sum((one - mean) ** 2 for one in left))
    found = Bootstrap(0).log_ratio(rows, n)
    assert found.estimate == pytest.approx(math.exp(whole))
    assert math.log(found.high / found.low) == pytest.approx(2 * 1.96 * error, rel=0.04)


def test_a_ratio_of_few_has_no_interval() -> None:
    boot = Bootstrap(0, resamples=300)
    five = [(50.0, 1.0, 100.0, 1.0)] * 5 + [(70.0, 0.0, 100.0, 1.0)] * 9
    assert boot.log_ratio(five, 14).low is None  # five solved
    assert boot.log_ratio([*five, five[0]], 15).low is not None
    assert boot.log_ratio([*five, five[0]], 5).low is None  # five that differ
    assert boot.log_ratio([(1.0, 0.0, 1.0, 1.0)], 1) == NOTHING
    assert boot.log_mean([]) == NOTHING
    assert boot.log_mean([0.5] * 5).low is None


@pytest.mark.parametrize("n", [14, 32, 100])
@pytest.mark.parametrize("kind", ["wide", "few", "cut"])
def test_intervals_of_mean_logs_cover_what_they_say(n: int, kind: str) -> None:
    """Wide scatter, few that differ, most cut at the cap; 95% said, 0.93 asked for."""
    draw, most = np.random.default_rng(n), math.log(2)
    few = np.asarray([0.0] * 22 + [0.5, 0.6, 0.69, 0.3, 0.2, -0.1, 0.05, -0.4, 0.6, 0.69])
    cut = np.asarray([most] * 20 + [0.0] * 6 + [-0.6, -0.4, -0.2, 0.1, 0.2, 0.4])

    def drawn() -> list[float]:
        if kind == "wide":
            ratio = draw.exponential(size=n) / draw.exponential(size=n)
            return np.clip(np.log(ratio), -most, most).tolist()
        return draw.choice(few if kind == "few" else cut, n).tolist()

    true = {"wide": 0.0, "few": few.mean(), "cut": cut.mean()}[kind]
    boot, hits, said = Bootstrap(1, resamples=600), 0, 0
    for _ in range(400):
        found = boot.log_mean(drawn(), most)
        if found.low is not None:
            said += 1
            hits += found.low <= math.exp(true) + 1e-9 and math.exp(true) <= found.high + 1e-9
    assert said > 60
    assert hits / said >= 0.93 - 2 * math.sqrt(0.05 * 0.95 / said)


def test_many_problems_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of resamples are bytes, and drawn again where there are too many to keep."""
    monkeypatch.setattr(bootstrap, "_BLOCK", 1 << 18)
    logs = np.random.default_rng(0).normal(0, 0.3, 1_000).tolist()
    kept = Bootstrap(0).log_mean(logs)
    for most, least, at_most in ((1 << 28, 10e6, 25e6), (1 << 20, 0, 12e6)):
        monkeypatch.setattr(bootstrap, "_KEPT", most)
        boot = Bootstrap(0)
        tracemalloc.start()
        found = boot.log_mean(logs)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found == kept
        assert least <= peak <= at_most  # 80 MB as floats
        assert bool(boot._counts) == (most > 1 << 20)


def test_the_interval_of_a_mean_length_equals_a_slow_loop() -> None:
    """Of the logarithm of total / count, by its definition: each resample's own error."""
    draw = np.random.default_rng(4)
    n, resamples = 9, 300
    rows = sorted(zip(draw.lognormal(5, 0.9, n), draw.integers(1, 4, n).astype(float), strict=True))

    def log_and_error(some: list[tuple[float, float]]) -> tuple[float, float]:
        total, count = map(sum, zip(*some, strict=True))
        apart = sum((one / total - times / count) ** 2 for one, times in some)
        return math.log(total / count), math.sqrt(n / (n - 1) * apart)

    (at, error), far = log_and_error(rows), []
    for row in np.random.default_rng(3).integers(0, n, (resamples, n)).tolist():
        drawn, its_error = log_and_error([rows[one] for one in row])
        far.append((drawn - at) / max(its_error, error / 3))
    far.sort()
    least = student.ppf(0.975, n - 1)
    down = max(far[math.ceil(0.975 * (resamples - 1))], least)
    up = max(-far[math.floor(0.025 * (resamples - 1))], least)
    found = Bootstrap(3, resamples=resamples).skewed_mean(rows)
    assert (found.low, found.high) == pytest.approx(
        (math.exp(at - down * error), math.exp(at + up * error))
    )


def test_the_interval_of_a_mean_length() -> None:
    boot = Bootstrap(0, resamples=300)
    assert boot.skewed_mean([]) == Interval(None, None, None)
    assert boot.skewed_mean([(0.0, 1.0)] * 8) == Interval(0.0, None, None)
    assert boot.skewed_mean([(float(at), 1.0) for at in range(5)]) == Interval(2.0, None, None)
    assert boot.skewed_mean([(40.0, 2.0)] * 6) == Interval(20.0, 20.0, 20.0)


@pytest.mark.parametrize(
    ("n", "cap", "least"), [(14, 4.0, 0.93), (14, None, 0.9), (32, None, 0.93)]
)
def test_the_interval_of_a_mean_length_covers_it(n: int, cap: float | None, least: float) -> None:
    """Skewed lengths, as long as they like or cut; a percentile interval covers 0.84 of 14."""
    draw = np.random.default_rng(n)
    cut = math.inf if cap is None else cap
    true = float(np.minimum(np.random.default_rng(0).lognormal(0, 0.9, 1_000_000), cut).mean())
    boot, hits, tried = Bootstrap(1, resamples=600), 0, 500
    for _ in range(tried):
        lengths = np.minimum(draw.lognormal(0, 0.9, n), cut)
        found = boot.skewed_mean([(one, 1.0) for one in lengths.tolist()])
        hits += found.low <= true <= found.high
    assert hits / tried >= least - 2 * math.sqrt(0.05 * 0.95 / tried)


def test_a_mean_of_differences_has_the_bounds_of_the_same_numbers_as_logs() -> None:
    gaps = [0.5, -0.25, 0.0, 1.5, -0.75, 0.125, 2.0, 0.0, -1.0]
    of, logs = Bootstrap(0).mean_difference(gaps), Bootstrap(0).log_mean(gaps)
    assert logs.low is not None
    assert logs.high is not None
    assert of.estimate == pytest.approx(sum(gaps) / len(gaps))
    assert of.low == pytest.approx(math.log(logs.low))
    assert of.high == pytest.approx(math.log(logs.high))
    large = Bootstrap(0).mean_difference([900 * one for one in gaps])  # exp of it would overflow
    assert large.high == pytest.approx(900 * (of.high or 0))
    few = Bootstrap(0).mean_difference([0.0] * 20 + gaps[3:7])
    assert few.estimate is not None
    assert few.low is few.high is None
    assert Bootstrap(0).mean_difference([]) == NOTHING
