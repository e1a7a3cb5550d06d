"""The promise about false stops: bounds against scipy, and how often it is broken."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from synthetic_samples import sample

from experiments.report.calibration import (
    FALSE_STOPS,
    Clean,
    choose_setting,
    false_stops,
    min_problems,
    p_value,
    split,
)


def alone(stopped: list[bool]) -> list[Clean]:
    return [Clean(str(i), 1, (int(s),)) for i, s in enumerate(stopped)]


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_the_bound_of_single_traces_is_clopper_and_pearsons(stopped: list[bool]) -> None:
    bound = false_stops(alone(stopped), 0)
    exact = binomtest(sum(stopped), len(stopped), alternative="less").proportion_ci(0.95)
    assert bound.high == pytest.approx(exact.high, abs=1e-7)
    assert bound.rate == sum(stopped) / len(stopped)
    assert bound.stopped == bound.problems_stopped == sum(stopped)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=60),
    st.floats(0.001, 0.9),
)
def test_several_traces_of_a_problem_prove_less(counts: list[tuple[int, int]], rate: float) -> None:
    """Never more than the exact test of single traces would give with as many stops, or fewer."""
    clean = [Clean(str(i), n, (min(n, s),)) for i, (n, s) in enumerate(counts)]
    total = sum(c.stopped[0] / c.traces for c in clean)
    p = p_value(clean, 0, rate)
    assert 0 <= p <= 1
    fewest = p_value(alone([i < math.floor(total) for i in range(len(clean))]), 0, rate)
    assert p >= fewest * (1 - 1e-9)
    assert p_value(clean, 0, min(0.999, rate * 1.1)) <= p + 1e-12


@pytest.mark.parametrize("stopped", [0, 1, 3, 8])
def test_problems_that_stop_as_one_prove_what_both_inequalities_do(stopped: int) -> None:
    n, rate = 200, 0.05
    clean = [Clean(str(i), 3, (3 * (i < stopped),)) for i in range(n)]
    share = stopped / n
    chance = (rate / share) ** stopped if stopped else 1.0
    hoeffding = chance * ((1 - rate) / (1 - share)) ** (n - stopped)
    tail = sum(math.comb(n, i) * rate**i * (1 - rate) ** (n - i) for i in range(stopped + 1))
    assert p_value(clean, 0, rate) == pytest.approx(min(1, hoeffding, math.e * tail))


@pytest.mark.parametrize(("rate", "traces"), [(0.005, 598), (0.01, 299), (0.05, 59), (0.5, 5)])
def test_traces_that_a_rate_needs(rate: float, traces: int) -> None:
    assert min_problems(rate) == traces
    for one_trace in (1, 4):
        clean = [Clean(str(i), one_trace, (0,)) for i in range(traces)]
        assert choose_setting(clean, 1, rate) == 0
        assert choose_setting(clean[:-1], 1, rate) is None


def test_nothing_is_known_of_nothing() -> None:
    assert false_stops([], 0).high == 1
    assert false_stops([], 0).rate is None
    assert choose_setting([], 3, 0.5) is None
    assert false_stops(alone([True]), 0).high == 1


def test_the_search_ends_at_the_first_that_fails() -> None:
    clean = [Clean(str(i), 1, (0, int(i < 30), 0)) for i in range(100)]
    assert choose_setting(clean, 3, 0.05) == 0


def test_splits_share_no_problem_and_depend_on_the_seed() -> None:
    traces = {("easy", str(i)): [(sample(i), [])] for i in range(31)}
    traces |= {("hard", str(i)): [(sample(i, dataset="hard"), [])] for i in range(8)}

    def halves(traces: Any = traces, seed: int = 0) -> list[set[str]]:
        return [{x.problem for x in half.clean} for half in split(traces, [], seed, FALSE_STOPS)]

    first, second = halves()
    assert first | second == {"/".join(key) for key in traces}
    assert len(first) + len(second) == 39
    assert sum(problem.startswith("hard/") for problem in first) == 4
    assert halves(dict(reversed(traces.items())))[0] == first
    assert halves(seed=1)[0] != first


RATES = np.array([0.01, 0.02, 0.03, 0.045, 0.055, 0.07, 0.09, 0.2])


@pytest.mark.parametrize(("traces", "alike"), [(1, 5.0), (3, 0.2), (17, math.inf)])
def test_how_often_the_promise_is_broken(traces: int, alike: float) -> None:
    """1,000 stores of detectors of known rates, whose stops go by problem or by trace.

    Args:
        traces: of each problem.
        alike: problems' own rates scatter around the detector's the more, the smaller this is.
    """
    rng = np.random.default_rng(int(traces * 1000 + min(alike, 99)))
    wanted, n, broken, settled = 0.05, 150, 0, 0
    for _ in range(1000):
        if math.isinf(alike):
            own = np.tile(RATES, (n, 1))
        else:
            own = rng.beta(alike * RATES, alike * (1 - RATES), (n, len(RATES)))
        stopped = rng.binomial(traces, own)
        clean = [Clean(str(i), traces, tuple(row)) for i, row in enumerate(stopped.tolist())]
        setting = choose_setting(clean, len(RATES), wanted)
        if setting is not None:
            settled += 1
            broken += RATES[setting] > wanted
    message = (
        f"{traces} traces, alike {alike:g}: broken {broken} of 1000, {settled} chose a setting"
    )
    assert broken <= 50, message
    assert settled > 300, message  # it promises something
