"""Every measure on numbers small enough to check by hand, then the hard cases."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from synthetic_samples import demo, failed, guarded, sample, sparse

from experiments.report.measures import summarise, summarise_pooled
from experiments.report.report import detector_pools
from experiments.report.row import ReportRow
from experiments.store.samples.sample import Sample, Shorter


def row_of(samples: list[Sample], factor: int | None = 2, **which: object) -> ReportRow:
    (row,) = [
        row
        for row in summarise(samples, seed=0, factor=factor)
        if all(getattr(row, name) == value for name, value in which.items())
    ]
    return row


def gmean(*ratios: float) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def test_accuracy_and_its_change_against_the_same_problems() -> None:
    full = [sample(i, correct=i != 3) for i in range(6)]
    row = row_of(full + [sparse(i, correct=i in (2, 3)) for i in range(6)], backend="h2o")
    assert (row.n, row.pairs) == (6, 6)
    assert row.accuracy.estimate == pytest.approx(2 / 6)
    assert row.accuracy_change.estimate == pytest.approx((2 - 5) / 6)
    assert (row.accuracy_change.lost, row.accuracy_change.gained) == (4, 1)
    # five differing pairs, four one way: 2 * (1 + 5) / 32
    assert row.accuracy_change.p == pytest.approx(12 / 32)


def test_length_ratio_is_of_mean_logs_that_the_cap_clips() -> None:
    full = [sample(0, tokens=100), sample(1, tokens=200), sample(2, tokens=400)]
    small = [sparse(0, tokens=150, correct=False), sparse(1, tokens=500), sparse(2, tokens=300)]
    row = row_of(full + small, backend="h2o")
    assert row.length_ratio.estimate == pytest.approx(gmean(1.5, 2.0, 0.75))
    assert row.length_ratio_solved.estimate == pytest.approx(gmean(2.0, 0.75))
    assert row.solved_by_both == 2
    # Three problems that differ are too few for an interval.
    assert (row.length_ratio.low, row.length_ratio.differs) == (None, 3)
    assert row.mean_tokens.estimate == pytest.approx(950 / 3)
    free = row_of(full + small, factor=None, backend="h2o")
    assert free.length_ratio.estimate == pytest.approx(gmean(1.5, 2.5, 0.75))
    short = row_of([*full, sparse(0, tokens=10), *small[1:]], backend="h2o")
    assert short.length_ratio.estimate == pytest.approx(gmean(0.5, 2.0, 0.75))


def test_full_attention_cut_at_its_own_cap_is_in_no_ratio() -> None:
    full = [sample(0), sample(1, status="capped", tokens=500)]
    row = row_of([*full, sparse(0, tokens=150), sparse(1, tokens=100)], backend="h2o")
    assert (row.pairs, row.pairs_censored) == (2, 1)
    assert row.length_ratio.estimate == pytest.approx(1.5)
    assert row.keys_read_per_solved_ratio.estimate == 1


def test_cost_of_a_solved_problem() -> None:
    full = [sample(i, keys_read=1000.0, correct=i > 0) for i in range(8)]
    small = [sparse(i, keys_read=300.0 + i, correct=i > 1) for i in range(8)]
    row = row_of(full + small, backend="h2o")
    assert row.keys_read_per_solved == pytest.approx((2400 + 28) / 6)
    ratio = row.keys_read_per_solved_ratio
    assert ratio.estimate == pytest.approx((2428 / 6) / (8000 / 7))
    assert ratio.low <= ratio.estimate <= ratio.high
    assert (ratio.differs, ratio.p) == (8, pytest.approx(2 / 2**8))
    none = row_of(full + [sparse(i, correct=False) for i in range(8)], backend="h2o")
    assert (none.keys_read_per_solved, none.keys_read_per_solved_ratio.estimate) == (None, None)


def test_a_detector_against_the_same_traces_left_alone() -> None:
    plain = [
        sparse(0, tokens=100, correct=True),
        sparse(1, tokens=400, correct=False),
        sparse(2, tokens=300, correct=True),
        sparse(3, tokens=200, correct=False),
    ]
    watched = [
        guarded(plain[0], None),
        replace(guarded(plain[1], 100), dropped_tokens=50),
        replace(guarded(plain[2], 150), correct=False),
        replace(guarded(plain[3], 150), correct=True),
    ]
    effect = row_of(plain + watched, detector="guardian").detector_effect
    assert (effect.paid, effect.paid_without) == (550, 1000)  # what was dropped is paid, too
    assert effect.tokens.estimate == pytest.approx(0.45)
    assert effect.correct == pytest.approx(1 - 250 / 400)
    assert effect.incorrect == pytest.approx(1 - 300 / 600)
    assert (effect.fired, effect.solved) == (3, 2)
    assert (effect.change.lost, effect.change.gained, effect.change.estimate) == (1, 1, 0)
    assert row_of(plain + watched, detector="none").detector_effect is None


def test_a_penalty_against_the_same_configuration_without_it() -> None:
    full = [sample(i, tokens=100) for i in range(4)]
    plain = [sparse(i, tokens=200, correct=i < 2, repeated=i > 0) for i in range(4)]
    other = [sparse(i, budget=64, tokens=999) for i in range(4)]
    lz = [sparse(i, tokens=150, correct=i != 0, repeated=False, penalty="lz") for i in range(4)]
    row = row_of(full + plain + other + lz, penalty="lz")
    assert row.length_ratio.estimate == pytest.approx(1.5)
    assert row.penalty_effect.length_ratio.estimate == pytest.approx(0.75)
    assert (row.penalty_effect.change.lost, row.penalty_effect.change.gained) == (1, 2)
    assert row.penalty_effect.loops == pytest.approx(-0.75)
    without = row_of([*full, *lz], penalty="lz")
    assert without.penalty_effect.length_ratio.estimate is None


@pytest.mark.parametrize("status", ["error", "out_of_memory", "missing"])
def test_a_configuration_that_is_not_complete_has_counts_alone(status: str) -> None:
    full = [sample(i) for i in range(3)]
    row = row_of([*full, sparse(0), sparse(1), failed(2, status)], backend="h2o")
    assert (row.samples, row.finished, row.errors + row.missing, row.n) == (3, 2, 1, 0)
    assert not row.is_complete
    assert row.accuracy.estimate is row.length_ratio.estimate is row.mean_tokens.estimate is None
    lacking = row_of([sparse(i) for i in range(3)] + full[:2], backend="h2o")
    assert (lacking.n, lacking.pairs, lacking.length_ratio.estimate) == (3, 0, None)


def test_several_samples_of_a_problem() -> None:
    samples = [
        sample(item, sample_index=at, correct=at < right)
        for item, right in enumerate((0, 1, 3))
        for at in range(3)
    ]
    row = row_of(samples)
    assert (row.samples, row.problems) == (9, 3)
    assert {k: at.estimate for k, at in row.pass_at.items()} == {
        1: pytest.approx(4 / 9),
        2: pytest.approx((0 + 2 / 3 + 1) / 3),
        3: pytest.approx(2 / 3),
    }
    single = row_of([draw for draw in samples if draw.sample_index == 0])
    assert single.pass_at == {}
    assert row.accuracy.low < 4 / 9 < row.accuracy.high


def test_seconds_are_compared_within_one_sweep_and_batch_size_alone() -> None:
    full = [sample(i) for i in range(3)]
    assert row_of(full + [sparse(i) for i in range(3)], backend="h2o").decode_sec == 3
    for other in ({"sweep": "two"}, {"batch_size": 4}, {"workers": 2}, {"sweep": None}):
        row = row_of(full + [sparse(i, **other) for i in range(3)], backend="h2o")
        assert row.decode_sec is None


def test_what_is_not_a_number_is_missing() -> None:
    row = row_of([sample(0, keys_read_mean=math.nan), sample(1, keys_read_mean=20.0)])
    assert row.keys_read_mean == 20
    lengths = row_of([sample(0, correct=None)])
    assert (lengths.n, lengths.samples, lengths.accuracy.estimate) == (0, 1, None)
    assert (lengths.mean_tokens.estimate, lengths.keys_read_per_solved) == (100, None)


def test_a_smaller_cap_reads_the_same_samples() -> None:
    def cut(whole: Sample, tokens: int, correct: bool) -> Sample:
        status: Any = "capped" if tokens < (whole.tokens or 0) else "ok"
        return replace(whole, shorter=(Shorter(2, status, tokens, correct, 500.0),))

    full = [cut(sample(i), 100, True) for i in range(6)]
    small = [cut(sparse(i, tokens=400), 200, i > 3) for i in range(6)]
    row = row_of(full + small, factor=4, backend="h2o")
    (cap,) = row.caps
    assert (cap.factor, cap.capped, cap.accuracy.estimate) == (2, 6, pytest.approx(1 / 3))
    assert (row.length_ratio.estimate, cap.length_ratio.estimate) == (
        pytest.approx(4),
        pytest.approx(2),
    )
    assert (cap.accuracy_change.lost, cap.solved_by_both) == (4, 2)
    assert "longer" in row.claims
    assert "longer" in cap.claims


def test_controls_do_not_weaken_what_is_claimed_of_methods() -> None:
    """Each role is a family of its own: controls that change nothing raise no method's p."""
    full = [sample(i) for i in range(7)]
    method = [sparse(i, tokens=150 + i) for i in range(7)]
    alone = row_of(full + method, backend="h2o")
    controls = [
        replace(
            sparse(i, budget=budget, tokens=101 - 2 * (i % 2)), backend="random", role="control"
        )
        for budget in range(16, 96, 16)
        for i in range(7)
    ]
    row = row_of(full + method + controls, backend="h2o")
    assert "longer" in row.claims
    assert row.claims == alone.claims


def test_claims_need_six_problems_a_margin_and_what_chance_does_not_do() -> None:
    def claims(count: int, tokens: int, null: int | None = None) -> tuple[str, ...]:
        samples = [sample(i) for i in range(count)]
        samples += [sparse(i, tokens=tokens + i % 3) for i in range(count)]
        if null is not None:
            again = {"backend": "full again", "role": "null"}
            samples += [sample(i, tokens=null + i % 3, **again) for i in range(count)]
        return row_of(samples, backend="h2o").claims

    assert {"longer", "longer solved"} <= set(claims(12, 150))
    assert {"shorter", "shorter solved"} <= set(claims(12, 60))
    assert claims(5, 150) == ()
    assert claims(12, 100) == ()  # one per cent
    assert "longer" not in claims(12, 150, null=150)
    assert "longer" in claims(12, 190, null=120)


def test_all_data_sets_together() -> None:
    samples = demo(problems=4, budgets=(32,))
    rows = summarise_pooled(samples, 0)
    assert {(row.dataset, row.problems, row.detector) for row in rows} == {("all", 12, "none")}
    assert summarise_pooled([s for s in samples if s.dataset == "easy"], 0) == []
    part = [s for s in samples if (s.backend, s.dataset) != ("h2o", "hard")]
    assert "h2o" not in {row.backend for row in summarise_pooled(part, 0)}


def test_a_detector_over_all_sparse_configurations() -> None:
    samples = demo(problems=10, budgets=(16, 64))
    (pool,) = detector_pools(samples, 0)
    plain = {s.run: s for s in samples if s.detector == "none"}
    pairs = [(s, plain[s.run]) for s in samples if s.detector != "none" and s.budget]
    saved = 1 - sum(a.tokens for a, _ in pairs) / sum(b.tokens for _, b in pairs)
    assert pool.effect.tokens.estimate == pytest.approx(saved)
    assert (pool.samples, pool.problems, pool.cells) == (240, 30, 24)
    assert pool.effect.fired == sum(a.stopped_at is not None for a, _ in pairs) > 0
    assert (pool.full.stopped, pool.full.traces) == (0, 30)
    worse = [replace(s, correct=False) if s.detector != "none" else s for s in samples]
    (losing,) = detector_pools(worse, 0)
    assert losing.effect.change.high < 0
    assert len(losing.losing) > 3
    (broken,) = detector_pools([*samples[1:], replace(samples[0], status="missing")], 0)
    assert (broken.missing, broken.effect.tokens.estimate, broken.cells) == (1, None, 0)


def test_rows_do_not_depend_on_the_order_of_samples() -> None:
    samples = demo(problems=5, budgets=(32,))
    assert summarise(random.Random(1).sample(samples, len(samples)), 0) == summarise(samples, 0)


def test_a_problem_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        summarise([sample(0), sample(0)], 0)
