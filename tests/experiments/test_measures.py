"""Every measure on numbers small enough to check by hand, then properties, then the hard cases."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_samples import demo, failed, guarded, sample, sparse

from experiments.report.measures import ReportRow, rows
from experiments.report.row import FIRST, columns
from experiments.store.samples.sample import Sample


def row_of(samples: list[Sample], **which: object) -> ReportRow:
    found = [
        row
        for row in rows(samples, seed=0)
        if all(getattr(row, name) == value for name, value in which.items())
    ]
    assert len(found) == 1
    return found[0]


def test_a_row_is_json() -> None:
    document = rows(demo(problems=3), seed=0)[5].to_dict()
    assert list(document) == list(columns())
    assert list(document)[: len(FIRST)] == list(FIRST)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_accuracy_and_its_change_against_the_same_problems() -> None:
    full = [sample(i, correct=i != 3) for i in range(6)]
    small = [sparse(i, correct=i in (2, 3)) for i in range(6)]
    row = row_of(full + small, backend="h2o")
    assert (row.n, row.pairs, row.pairs_missing) == (6, 6, 0)
    assert row.accuracy.estimate == pytest.approx(2 / 6)
    assert row.accuracy_change.estimate == pytest.approx((2 - 5) / 6)
    assert (row.accuracy_change.lost, row.accuracy_change.gained) == (4, 1)
    # five differing pairs, four one way: 2 * (1 + 5) / 32
    assert row.accuracy_change.p == pytest.approx(12 / 32)


def gmean(*ratios: float) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def test_length_ratio_is_of_mean_logs_and_of_sums_apart() -> None:
    full = [sample(0, tokens=100), sample(1, tokens=200), sample(2, tokens=400)]
    small = [
        sparse(0, tokens=150),
        sparse(1, tokens=400, status="capped", finish="length"),
        sparse(2, tokens=300),
    ]
    row = row_of(full + small, backend="h2o")
    assert row.length_ratio.estimate == pytest.approx(gmean(1.5, 2.0, 0.75))
    assert row.length_ratio_of_sums == pytest.approx(850 / 700)
    assert row.length_ratio_finished == pytest.approx(gmean(1.5, 0.75))
    assert row.length_ratio_capped == pytest.approx(2.0)
    assert row.length_ratio_stopped is None
    # Three problems that differ are too few for an interval.
    assert (row.length_ratio.low, row.length_ratio.differs) == (None, 3)
    assert (row.finished, row.capped, row.stopped, row.errors) == (2, 1, 0, 0)
    assert row.mean_tokens.estimate == pytest.approx(850 / 3)


def test_full_attention_compared_with_itself_changes_nothing() -> None:
    row = row_of([sample(i, tokens=100 + i) for i in range(5)], backend="full")
    assert (row.length_ratio.estimate, row.length_ratio.low, row.length_ratio.p) == (1, None, 1)
    assert (row.length_ratio.differs, row.keys_read_per_solved_ratio.differs) == (0, 0)
    assert (row.accuracy_change.estimate, row.accuracy_change.p) == (0, 1)
    assert (row.token_savings.estimate, row.detector_pairs, row.cheaper) == (None, None, None)


def test_detector_saves_tokens_over_all_correct_and_incorrect() -> None:
    alone = [
        sparse(0, tokens=100, correct=True),
        sparse(1, tokens=400, correct=False),
        sparse(2, tokens=300, correct=True),
        sparse(3, tokens=200, correct=False),
    ]
    watched = [
        guarded(alone[0], None),
        guarded(alone[1], 100),
        replace(guarded(alone[2], 150), correct=False),
        replace(guarded(alone[3], 150), correct=True),
    ]
    row = row_of(alone + watched, detector="guardian")
    assert row.token_savings.estimate == pytest.approx(1 - 500 / 1000)
    assert row.token_savings_correct == pytest.approx(1 - 250 / 400)
    assert row.token_savings_incorrect == pytest.approx(1 - 250 / 600)
    assert row.token_savings.low <= row.token_savings.estimate <= row.token_savings.high
    assert (row.detector_tokens, row.detector_tokens_without) == (500, 1000)
    assert (row.detector_accuracy_change.lost, row.detector_accuracy_change.gained) == (1, 1)
    assert (row.detector_accuracy_change.estimate, row.detector_accuracy_change.p) == (0, 1)
    assert (row.finished, row.stopped) == (1, 3)
    assert row.pairs == 0  # nothing of full attention here
    assert row.length_ratio.estimate is None


def test_wasted_tokens_that_a_detector_spares() -> None:
    cut = {"correct": False, "status": "capped", "tokens": 200}
    alone = [sparse(i, wasted_loop=10 * i, wasted_tail=100 + i, **cut) for i in range(1, 5)] + [
        sparse(5, wasted_loop=0, wasted_tail=0)
    ]
    watched = [
        replace(guarded(one, 150), wasted_loop=0, wasted_tail=50 + i, correct=False)
        for i, one in enumerate(alone[:4], start=1)
    ] + [guarded(alone[4], None)]
    row = row_of(alone + watched, detector="guardian")
    assert (row.wasted_loop, row.wasted_tail) == (0, 210)
    assert row.wasted_loop_savings.estimate == 1
    assert row.wasted_tail_savings.estimate == pytest.approx(1 - 210 / 410)
    plain = row_of(alone + watched, detector="none")
    assert (plain.wasted_loop, plain.wasted_tail) == (100, 410)
    assert plain.wasted_tail_savings.estimate is None
    # Some resample may hold the one problem that wastes nothing: then there are no bounds.
    assert row.wasted_tail_savings.low is None
    sure = row_of(alone[:4] + watched[:4], detector="guardian")
    low, high = sure.wasted_tail_savings.low, sure.wasted_tail_savings.high
    assert 1 - 54 / 104 <= low < sure.wasted_tail_savings.estimate < high <= 1 - 51 / 101
    unknown = row_of([sparse(1), sparse(2, wasted_loop=0, wasted_tail=0)], backend="h2o")
    assert (unknown.wasted_loop, unknown.wasted_tail) == (None, None)


def test_detector_is_compared_within_its_own_parameters() -> None:
    one = [sparse(0, tokens=100, backend_params=(("page", 8),))]
    other = [sparse(0, tokens=900, backend_params=(("page", 16),))]
    found = rows(one + other + [guarded(one[0], 50), guarded(other[0], 90)], seed=0)
    watched = {row.backend_params["page"]: row for row in found if row.detector != "none"}
    assert len(found) == 4
    assert watched[8].token_savings.estimate == pytest.approx(0.5)
    assert watched[16].token_savings.estimate == pytest.approx(0.9)


def test_cost_per_solved_problem_counts_unsolved_ones_too() -> None:
    full = [sample(i, keys_read=1000.0, correct=i < 3) for i in range(4)]
    small = [sparse(i, keys_read=600.0, decode_sec=7.0, correct=i < 1) for i in range(4)]
    row = row_of(full + small, backend="h2o")
    assert row.keys_read_per_solved.estimate == pytest.approx(2400)
    assert row.keys_read_per_solved_ratio.estimate == pytest.approx(2400 / (4000 / 3))
    assert row.sec_per_solved == pytest.approx(4 * 8)
    assert row.sec_per_solved_ratio == pytest.approx(32 / (16 / 3))
    assert (row.end_to_end_sec, row.end_to_end_ratio) == (pytest.approx(8), pytest.approx(2))
    assert (row.prefill_sec, row.decode_sec) == (1.0, 7.0)


def test_memory_is_bytes_times_seconds() -> None:
    full = [sample(0, cache_byte_sec=100.0), sample(1, cache_byte_sec=300.0)]
    small = [sparse(0, cache_byte_sec=50.0), sparse(1, cache_byte_sec=250.0, cache_bytes_peak=9000)]
    row = row_of(full + small, backend="h2o")
    assert (row.cache_byte_sec, row.cache_byte_sec_ratio) == (150.0, 0.75)
    assert row.cache_bytes_peak == 9000


def test_keys_are_means_and_maxima() -> None:
    small = [
        sparse(0, keys_kept_max=30, keys_read_mean=20.0, keys_read_max=32),
        sparse(1, keys_kept_max=32, keys_read_mean=30.0, keys_read_max=31),
        sparse(2, keys_kept_max=None, keys_read_mean=None, keys_read_max=None),
    ]
    row = row_of(small)
    assert (row.keys_kept_max, row.keys_read_mean, row.keys_read_max) == (32, 25.0, 32)
    assert row.dense_layer_keys_read_mean is None


def test_compression_and_its_curve() -> None:
    small = [
        sparse(0, curve=((50, 100, 50), (100, 200, 80), (130, 260, 90)), repeated=True),
        sparse(1, curve=((50, 100, 40), (90, 180, 60))),
        sparse(2, curve=()),
    ]
    row = row_of(small)
    assert row.compression_ratio.estimate == pytest.approx((90 / 260 + 60 / 180) / 2)
    assert row.repetition_rate == pytest.approx(1 / 3)
    # 90 is one output's end and no check of the other; from 100 on only the first is left
    assert [(at, n) for at, _, n in row.compression_curve] == [(50, 2), (100, 1), (130, 1)]
    assert row.compression_curve[0][1] == pytest.approx(0.45)


def test_avg_and_pass_at_k_need_all_samples_of_a_problem() -> None:
    def tried(item: int, at: int, correct: bool) -> Sample:
        return sparse(item, sample_index=at, correct=correct)

    small = [tried(0, 0, True), tried(0, 1, False), tried(0, 2, False)]
    small += [tried(1, 0, False), tried(1, 1, False), tried(1, 2, False)]
    row = row_of(small)
    assert (row.samples_per_problem, row.problems, row.samples, row.n) == (3, 2, 6, 6)
    assert row.avg_at_k == pytest.approx(1 / 6)
    assert row.pass_at_k == pytest.approx(1 / 2)
    started = [tried(2, 0, True), tried(2, 1, True)]
    for more in ([*started, failed(2, sample_index=2)], started):  # failed, or not asked for
        short = row_of([*small, *more])
        assert (short.problems, short.avg_at_k, short.pass_at_k) == (3, None, None)
    one_each = row_of([sparse(0), sparse(1)])
    assert (one_each.avg_at_k, one_each.pass_at_k) == (None, None)


def test_samples_of_a_problem_are_one_value_of_the_length_ratio() -> None:
    full = [sample(0, sample_index=k) for k in (0, 1)] + [sample(1)]
    small = [sparse(0, sample_index=k, tokens=200) for k in (0, 1)] + [sparse(1, tokens=100)]
    assert row_of(full + small, backend="h2o").length_ratio.estimate == pytest.approx(
        gmean(2.0, 1.0)
    )


def test_a_log_is_clipped_on_both_sides_where_the_cap_cuts_one() -> None:
    """Lengths that are drawn alike have ratio 1, however wide they scatter."""
    lengths = [10, 40, 160, 640]
    pairs = list(itertools.product(lengths, lengths))
    for factor, cap in ((2, 2), (4, 4), (8, 8)):
        full = [sample(i, tokens=theirs) for i, (_, theirs) in enumerate(pairs)]
        small = [
            sparse(i, tokens=min(mine, cap * theirs)) for i, (mine, theirs) in enumerate(pairs)
        ]
        (row,) = [r for r in rows(full + small, seed=0, factor=factor) if r.backend == "h2o"]
        assert row.length_ratio.estimate == pytest.approx(1)
        assert row.length_ratio_of_sums < 1  # what is cut on one side alone


def test_partner_has_neither_penalty_nor_detector() -> None:
    full = [sample(0, tokens=100), sample(0, tokens=10, penalty="lz")]
    full.append(guarded(full[0], 50))
    small = [sparse(0, tokens=300, penalty="lz")]
    assert row_of(full + small, backend="h2o").length_ratio_of_sums == pytest.approx(3)
    lz = row_of(full + small, backend="full", penalty="lz")
    assert lz.length_ratio_of_sums == pytest.approx(0.1)
    assert lz.length_ratio.estimate == pytest.approx(0.5)  # clipped at the cap's factor
    assert row_of(full + small, detector="guardian").length_ratio.estimate == pytest.approx(0.5)


def line(costs: dict[int, float], solved: int = 4) -> list[Sample]:
    full = [sample(i, keys_read=1000.0) for i in range(4)]
    return full + [
        sparse(i, budget=budget, keys_read=1000.0 * cost, correct=i < solved)
        for budget, cost in costs.items()
        for i in range(4)
    ]


@pytest.mark.parametrize(
    ("costs", "first", "last", "best", "budgets"),
    [
        ({16: 4.0, 64: 0.25}, (32.0, "crossing"), (64.0, "at least"), (64, 0.25), 1),
        ({16: 0.9, 32: 0.8}, (16.0, "at most"), (32.0, "at least"), (32, 0.8), 2),
        ({16: 0.5, 32: 2.0}, (16.0, "at most"), (16 * 2**0.5, "crossing"), (16, 0.5), 1),
        ({16: 2.0, 32: 0.5, 64: 2.0, 128: 0.5}, (16 * 2**0.5, "crossing"), (128, "at least"),
         (32, 0.5), 2),
        # As Quest does: larger budgets cost a little more than full attention, for their bounds.
        ({64: 3.0, 128: 0.75, 256: 0.86, 512: 1.04}, (64 * 2**0.79248, "crossing"),
         (256 * 2**0.79363, "crossing"), (128, 0.75), 2),
        ({16: 2.0, 32: 1.0}, (None, None), (None, None), (None, None), 0),
    ],
)  # fmt: skip
def test_between_which_budgets_a_solved_problem_costs_less(
    costs: dict[int, float],
    first: tuple[float | None, str | None],
    last: tuple[float | None, str | None],
    best: tuple[int | None, float | None],
    budgets: int,
) -> None:
    found = [row for row in rows(line(costs), seed=0) if row.backend == "h2o"]
    (at,) = {row.cheaper for row in found}
    assert at is not None
    assert (at.budgets, at.of) == (budgets, len(costs))
    for (budget, kind), (got, got_kind) in (
        (first, (at.first, at.first_kind)),
        (last, (at.last, at.last_kind)),
    ):
        assert got_kind == kind
        assert got == (None if budget is None else pytest.approx(budget, rel=1e-4))
    assert (at.best, at.best_ratio) == (best[0], best[1] and pytest.approx(best[1]))


def test_where_nothing_is_solved_a_crossing_is_only_bounded() -> None:
    samples = line({32: 0.5}) + [sparse(i, budget=16, correct=False) for i in range(4)]
    row = row_of(samples, backend="h2o", budget=16)
    assert (row.keys_read_per_solved.estimate, row.keys_read_per_solved_ratio.estimate) == (
        None,
        None,
    )
    assert row.cheaper is not None
    assert (row.cheaper.first, row.cheaper.first_kind) == (32.0, "at most")


def test_what_full_attention_was_cut_at_is_in_no_ratio() -> None:
    """The sparse run had the same room, and neither length is known."""
    full = [sample(i) for i in range(3)] + [
        sample(i, status="capped", finish="length", correct=False, tokens=60) for i in (3, 4)
    ]
    small = [sparse(i, tokens=150) for i in range(4)]
    small.append(sparse(4, tokens=60, status="capped", finish="length", correct=False))
    row = row_of(full + small, backend="h2o")
    assert (row.pairs, row.pairs_censored, row.pairs_missing) == (5, 2, 0)
    assert (row.length_ratio.estimate, row.length_ratio_of_sums) == (pytest.approx(1.5), 1.5)
    assert row.length_ratio_capped is None
    assert (row.solved_by_both, row.accuracy_change.gained, row.accuracy_change.estimate) == (
        3,
        1,
        0.2,
    )
    assert row.keys_read_per_solved_ratio.estimate == 1
    alone = row_of(full + small, backend="full")
    assert (alone.pairs_censored, alone.length_ratio.estimate) == (2, 1)


def test_where_every_pair_is_censored_there_is_no_ratio() -> None:
    cut = {"status": "capped", "finish": "length", "correct": False}
    row = row_of([sample(i, **cut) for i in range(3)] + [sparse(i, **cut) for i in range(3)],
                 backend="h2o")  # fmt: skip
    assert (row.pairs, row.pairs_censored, row.accuracy_change.estimate) == (3, 3, 0)
    assert (
        row.length_ratio.estimate,
        row.keys_read_per_solved_ratio.estimate,
        row.end_to_end_ratio,
    ) == (None,) * 3
    assert row.cheaper is None


def test_longer_though_right() -> None:
    full = [sample(i, correct=i < 4) for i in range(6)]
    small = [sparse(i, tokens=100 * (i + 1), correct=i != 1) for i in range(6)]
    row = row_of(full + small, backend="h2o")
    assert (row.solved_by_both, row.length_ratio_solved.estimate) == (
        3,
        pytest.approx(gmean(1, 2, 2)),
    )
    (row,) = [r for r in rows(full + small, seed=0, factor=8) if r.backend == "h2o"]
    assert row.length_ratio_solved.estimate == pytest.approx(gmean(1, 3, 4))
    assert row.length_ratio_solved.differs == 2


def test_samples_of_a_problem_do_not_count_as_problems() -> None:
    """Four samples of each of eight problems, all solved: not surer than eight are."""
    many = [sample(i, sample_index=k) for i in range(8) for k in range(4)]
    row, eight = row_of(many, backend="full"), row_of([sample(i) for i in range(8)], backend="full")
    assert (row.n, row.accuracy.low) == (32, pytest.approx(eight.accuracy.low))
    small = [sparse(i, sample_index=k, correct=i > 0) for i in range(8) for k in range(4)]
    lost = row_of(many + small, backend="h2o")
    one = [sparse(i, correct=i > 0) for i in range(8)]
    alone = row_of([sample(i) for i in range(8)] + one, backend="h2o")
    assert (lost.accuracy_change.lost, lost.accuracy_change.p) == (4, 1)
    assert lost.accuracy_change.low == pytest.approx(alone.accuracy_change.low)


def test_order_of_rows_is_a_readers() -> None:
    found = rows(demo(problems=2, backends=("sink", "h2o"), budgets=(64, 16)), seed=0)
    first = [(row.dataset, row.backend, row.budget, row.detector) for row in found[:5]]
    assert first == [
        ("easy", "full", None, "none"),
        ("easy", "full", None, "guardian"),
        ("easy", "h2o", 16, "none"),
        ("easy", "h2o", 16, "guardian"),
        ("easy", "h2o", 64, "none"),
    ]
    assert list(dict.fromkeys(row.dataset for row in found)) == ["easy", "medium", "hard"]


@settings(max_examples=3, deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_of_samples_changes_nothing(shuffle: random.Random) -> None:
    samples = demo(problems=6, budgets=(16, 64), backends=("h2o", "quest"))
    before = rows(samples, seed=1)
    shuffle.shuffle(samples)
    assert rows(samples, seed=1) == before


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), min_size=1, max_size=12))
def test_detector_that_never_fires_saves_nothing(traces: list[tuple[int, bool]]) -> None:
    alone = [sparse(i, tokens=t, correct=c) for i, (t, c) in enumerate(traces)]
    row = row_of(alone + [guarded(one, None) for one in alone], detector="guardian")
    assert row.token_savings.estimate == 0
    assert row.token_savings_correct in (0, None)
    assert row.token_savings_incorrect in (0, None)
    assert (row.detector_accuracy_change.estimate, row.detector_accuracy_change.p) == (0, 1)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 900), st.integers(1, 900), st.booleans(), st.booleans()),
        min_size=2,
        max_size=15,
    )
)
def test_intervals_contain_their_estimates(pairs: list[tuple[int, int, bool, bool]]) -> None:
    samples = [sample(i, tokens=full, correct=a) for i, (full, _, a, _) in enumerate(pairs)]
    samples += [sparse(i, tokens=mine, correct=b) for i, (_, mine, _, b) in enumerate(pairs)]
    for row in rows(samples, seed=3):
        assert 0 <= row.accuracy.low <= row.accuracy.estimate <= row.accuracy.high <= 1
        if row.length_ratio.low is not None:
            assert row.length_ratio.low <= row.length_ratio.estimate <= row.length_ratio.high
        assert (row.length_ratio.low is None) == (row.length_ratio.differs < 6)
        assert 0.5 <= row.length_ratio.estimate <= 2
        assert (row.mean_tokens.low is None) == (row.problems < 6)
        if row.mean_tokens.low is not None:
            assert 0 < row.mean_tokens.low <= row.mean_tokens.estimate <= row.mean_tokens.high
        assert -1 <= row.accuracy_change.estimate <= 1
        json.dumps(row.to_dict(), allow_nan=False)


def test_no_samples_give_no_rows() -> None:
    assert rows([], seed=0) == []


def test_errors_only_are_counted_and_measure_nothing() -> None:
    full = [sample(i) for i in range(3)]
    broken = [failed(0), failed(1), failed(2, status="out_of_memory")]
    row = row_of(full + broken, backend="h2o")
    assert (row.n, row.samples, row.errors, row.out_of_memory) == (0, 3, 3, 1)
    assert (row.pairs, row.pairs_missing) == (0, 3)
    known = "n samples problems finished capped stopped errors out_of_memory fired pairs "
    known += "missing pairs_missing pairs_censored solved_by_both samples_per_problem "
    known += "reused_tokens compression_curve model dataset backend budget penalty detector "
    known += "action backend_params pass_at pass_at_low pass_at_high role caps claims pairs_same "
    known += "length_ratio_differs length_ratio_solved_differs penalty_length_ratio_differs "
    known += "keys_read_per_solved_ratio_differs at_positions"
    values = row.to_dict()
    assert {name for name, value in values.items() if value is not None} == set(known.split())


def test_what_is_not_complete_compares_nothing() -> None:
    """What is missing are the longest outputs: the rest would look short."""
    full = [sample(i, tokens=100) for i in range(3)]
    for status in ("error", "missing"):
        small = [sparse(0, tokens=200), sparse(1, tokens=900), failed(2, status=status)]
        row = row_of(full + small, backend="h2o")
        assert (row.samples, row.errors + row.missing, row.is_complete) == (3, 1, False)
        assert (
            row.n,
            row.accuracy.estimate,
            row.mean_tokens.estimate,
            row.length_ratio.estimate,
        ) == (0, None, None, None)
        assert (row.pairs, row.pairs_missing) == (0, 3)


def test_beside_full_attention_that_is_not_complete_there_is_no_comparison() -> None:
    full = [sample(0), failed(1, backend="full", budget=None), sample(2)]
    row = row_of(full + [sparse(i, tokens=200) for i in range(3)], backend="h2o")
    assert (row.accuracy.estimate, row.mean_tokens.estimate, row.is_complete) == (1, 200, True)
    assert (row.pairs, row.pairs_missing) == (0, 1)
    assert (
        row.length_ratio.estimate,
        row.accuracy_change.estimate,
        row.keys_read_per_solved_ratio.estimate,
    ) == (None,) * 3


def test_none_solved_has_no_cost_per_solved_problem() -> None:
    samples = [sample(i) for i in range(3)] + [sparse(i, correct=False) for i in range(3)]
    row = row_of(samples, backend="h2o")
    assert (row.accuracy.estimate, row.accuracy.low) == (0, 0)
    assert (row.keys_read_per_solved.estimate, row.sec_per_solved) == (None, None)
    assert row.keys_read_per_solved_ratio.estimate is None
    assert row.cheaper is not None
    assert (row.cheaper.budgets, row.cheaper.of, row.cheaper.first) == (0, 1, None)


def test_nobody_solved_leaves_costs_unknown() -> None:
    samples = [sample(0, correct=False), sparse(0, correct=False)]
    assert row_of(samples, backend="h2o").cheaper is None


def test_all_capped() -> None:
    full = [sample(i) for i in range(3)]
    capped = {"tokens": 200, "status": "capped", "finish": "length", "correct": False}
    row = row_of(full + [sparse(i, **capped) for i in range(3)], backend="h2o")
    assert (row.finished, row.capped) == (0, 3)
    assert (row.length_ratio_finished, row.length_ratio_capped) == (None, pytest.approx(2))
    full = [sample(i) for i in range(6)]
    row = row_of(full + [sparse(i, **capped) for i in range(6)], backend="h2o")
    assert (row.length_ratio.low, row.length_ratio.high) == (pytest.approx(2), pytest.approx(2))


def test_one_problem_has_a_ratio_but_no_interval() -> None:
    row = row_of([sample(0), sparse(0, tokens=150)], backend="h2o")
    assert (row.length_ratio.estimate, row.length_ratio.low) == (pytest.approx(1.5), None)
    assert row.accuracy.high == 1
    assert 0 < row.accuracy.low < 1


def test_unscored_samples_still_have_a_length() -> None:
    row = row_of([sample(0, correct=None), sparse(0, correct=None, tokens=150)], backend="h2o")
    assert (row.n, row.accuracy.estimate, row.accuracy.low, row.accuracy_change.estimate) == (
        0,
        None,
        None,
        None,
    )
    assert (row.length_ratio.estimate, row.keys_read_per_solved.estimate) == (
        pytest.approx(1.5),
        None,
    )


def test_missing_is_never_zero_and_nan_never_leaves() -> None:
    samples = [sample(0), sparse(0, decode_sec=float("nan"), keys_read=None)]
    samples += [sample(1), sparse(1, decode_sec=5.0, keys_read=float("inf"))]
    row = row_of(samples, backend="h2o")
    assert (row.decode_sec, row.end_to_end_sec, row.end_to_end_ratio) == (5.0, 6.0, 1.5)
    assert (row.keys_read_per_solved.estimate, row.keys_read_per_solved_ratio.estimate) == (
        None,
        None,
    )
    json.dumps(row.to_dict(), allow_nan=False)


def test_a_problem_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs twice under h2o, budget 32"):
        rows([sparse(0), sparse(0)], seed=0)
