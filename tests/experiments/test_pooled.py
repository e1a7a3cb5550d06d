"""What detectors do over all sparse configurations together, counted by hand and by numpy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_samples import guarded, sample, sparse

from experiments.report.bootstrap import Bootstrap
from experiments.report.pooled import detector_pools
from experiments.report.statistics import Interval
from experiments.report.tables import stopping_tables
from experiments.store.samples.sample import Sample


def wasting(item: int, tokens: int, loop: int, tail: int, **fields: object) -> Sample:
    """A sparse sample that the cap cut, unsolved."""
    return sparse(
        item, tokens=tokens, correct=False, status="capped", finish="length",
        wasted_loop=loop, wasted_tail=tail, **fields,
    )  # fmt: skip


def stopped(plain: Sample, at: int, **fields: object) -> Sample:
    """The same under the detector, with the waste that is left and other fields."""
    behind = (plain.tokens or 0) - at
    left = {
        name: None if (value := getattr(plain, name)) is None else value - min(value, behind)
        for name in ("wasted_loop", "wasted_tail")
    }
    return replace(guarded(plain, at), **left, **fields)


def test_counts_by_hand() -> None:
    solved = sparse(1, tokens=100, wasted_loop=0, wasted_tail=0)
    loops = wasting(2, 200, 50, 120)
    late = wasting(3, 200, 0, 100, budget=64)
    full = [sample(item) for item in range(5)]
    fine = sparse(4, tokens=80, wasted_loop=0, wasted_tail=0)
    samples = [
        *full, *(guarded(one, 30 if item == 3 else None) for item, one in enumerate(full)),
        solved, stopped(solved, 60, correct=False),
        loops, stopped(loops, 100, correct=False),
        late, stopped(late, 190, correct=True),
        fine, guarded(fine, None),
    ]  # fmt: skip
    (found,) = detector_pools(samples, 0)
    assert (found.detector, found.action, found.penalty) == ("guardian", "stop", "none")
    assert (found.samples, found.problems, found.fired) == (4, 4, 3)
    assert found.tokens.estimate == pytest.approx((40 + 100 + 10) / 580)
    assert (found.wasted_loops, found.wasted_tails) == (50, 220)
    assert found.loops.estimate == 1
    assert found.tails.estimate == pytest.approx((100 + 10) / 220)
    assert (found.solved, found.lost, found.gained) == (2, 1, 1)
    assert found.net.estimate == 0
    assert (found.full.stopped, found.full.traces) == (1, 5)
    (table,) = stopping_tables([found], 80)
    assert table.row_count == 1


def test_answers_are_counted_where_texts_differ_and_controls_left_out() -> None:
    """By hand: four texts differ, of which two are solved and one of these is lost."""
    full = [sample(item, output="the same") for item in range(5)]
    same = sparse(0, output="the same")
    lost, kept = sparse(1, output="other"), sparse(2, output="other")
    wrong = sparse(3, output="other", correct=False)
    gained = sparse(4, output="other", correct=False)
    random = sparse(1, backend="random", role="control", output="other")
    samples = [
        *full, *(guarded(one, None) for one in full),
        same, stopped(same, 9, correct=False),
        lost, stopped(lost, 9, correct=False),
        kept, guarded(kept, None),
        wrong, stopped(wrong, 9, correct=False),
        gained, stopped(gained, 9, correct=True),
        random, stopped(random, 9, correct=False),
    ]  # fmt: skip
    (found,) = detector_pools(samples, 0)
    assert (found.samples, found.solved, found.lost, found.gained) == (5, 3, 2, 1)
    assert (found.differing, found.net_differing.estimate) == (4, 0)
    (level,) = found.levels
    assert (level.dataset, level.solved, level.lost, level.gained) == ("easy", 2, 1, 1)
    low, high = level.lost_share.low, level.lost_share.high
    assert (low, level.lost_share.estimate, high) == pytest.approx((0.0945, 0.5, 0.9055), abs=1e-4)


def test_what_is_not_known_and_what_is_not_there() -> None:
    known, unknown = wasting(1, 200, 50, 120), sparse(2, tokens=100, correct=None)
    samples = [known, stopped(known, 100), unknown, guarded(unknown, 50)]
    (found,) = detector_pools(samples, 0)
    assert (found.samples, found.wasted_tails, found.net.estimate) == (2, 120, 0)
    assert (found.missing, found.full.traces) == (0, 0)
    assert detector_pools([sample(1), guarded(sample(1), 50)], 0) == []  # nothing sparse
    # The longest are missing: what is left would look too good.
    gone = replace(guarded(sparse(3), None), status="missing", tokens=None, correct=None)
    for lacking in ([sparse(3), gone], [gone, replace(gone, detector="none", action="none")]):
        plain = [one for one in lacking if one.detector == "none"]
        watched = [one for one in lacking if one.detector != "none"]
        (found,) = detector_pools([*samples, *plain, *watched], 0)
        assert (found.samples, found.missing) == (3, 1)
        assert found.tokens.estimate is found.tails.estimate is found.net.estimate is None
        assert (found.full.high, found.lost, found.gained) == (1, 0, 0)
        (table,) = stopping_tables([found], 80)
        assert "1 missing" in [*table.columns[2].cells]


def test_a_cell_that_loses_beyond_chance() -> None:
    """Eight losses have p = 2/256, also times two cells; six have 2/64, which two make too much."""
    for lost, cells, losing in ((8, 1, 1), (8, 2, 1), (6, 1, 1), (6, 2, 0)):
        samples = []
        for budget in range(cells):
            for item in range(10):
                plain = sparse(item, budget=budget + 1)
                gone = budget == 0 and item < lost
                samples += [plain, replace(guarded(plain, 50), correct=not gone)]
        (found,) = detector_pools(samples, 0)
        assert found.cells == cells
        assert found.losing == ("h2o 1 on easy",) * losing
    gains = [(one, sparse(one, correct=False)) for one in range(10)]
    samples = [x for _, one in gains for x in (one, replace(guarded(one, 50), correct=True))]
    assert detector_pools(samples, 0)[0].losing == ()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1, 0, 0, 0, 1])), min_size=4))
def test_samples_of_a_problem_are_resampled_together(moves: list[tuple[int, int]]) -> None:
    samples = []
    for at, (item, move) in enumerate(moves):
        plain = sparse(item, sample_index=at, correct=move < 0)
        samples += [plain, replace(guarded(plain, 50), correct=move > 0)]
    (found,) = detector_pools(samples, 7)
    sums: dict[int, list[int]] = {}
    for item, move in moves:
        one = sums.setdefault(item, [0, 0])
        one[0] += move
        one[1] += 1
    values = sorted((float(m), float(n)) for m, n in sums.values())
    assert found.net == Bootstrap(7).ratio(values)
    drawn = np.random.default_rng(7).integers(0, len(values), (10_000, len(values)))
    table = np.asarray(values)[drawn].sum(1)
    if len(values) > 1:
        low, high = np.percentile(table[:, 0] / table[:, 1], [2.5, 97.5])
        exact = sum(m for m, _ in values) / sum(n for _, n in values)
        assert found.net.low == pytest.approx(min(low, exact), abs=1e-12)
        assert found.net.high == pytest.approx(max(high, exact), abs=1e-12)
    else:
        assert found.net == Interval(found.net.estimate, None, None)
    assert math.isclose(found.net.estimate or 0, sum(m for _, m in moves) / len(moves))
