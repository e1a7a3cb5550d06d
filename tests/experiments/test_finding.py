"""The finding must follow the numbers, wherever they point."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from synthetic_samples import failed, guarded, sample, sparse

from experiments.report.finding import keeps_accuracy
from experiments.report.measures import finding, rows
from experiments.store.sample import Sample


def sweep(ratios: dict[int, float], correct: Sequence[bool] = (True,) * 8) -> list[Sample]:
    """Eight problems; under h2o with each budget every output is so many times as long."""
    full = [sample(i, tokens=100 + 20 * i, keys_read=1000.0) for i in range(8)]
    return full + [
        sparse(
            i, budget=budget, tokens=round((100 + 20 * i) * ratio), correct=correct[i],
            keys_read=1000.0 * ratio,
        )
        for budget, ratio in ratios.items()
        for i in range(8)
    ]  # fmt: skip


def say(samples: list[Sample]) -> str:
    return finding(rows(samples, seed=0))


def test_longer_outputs_are_said_to_be_longer() -> None:
    assert say(sweep({32: 1.5, 64: 1.2, 128: 1.0})) == (
        "Sparse attention made outputs longer in 2 of 3 configurations, up to 1.50 times "
        "[1.50, 1.50] (h2o 32, easy); over problems that both solve, longer in 2 of 3. A solved "
        "problem takes clearly fewer keys in 0 of 3; whether any keeps accuracy, too few problems "
        "say."
    )


def test_shorter_outputs_are_said_to_be_shorter() -> None:
    said = say(sweep({32: 0.6, 64: 0.9, 128: 1.0}))
    assert said.startswith(
        "Sparse attention made outputs shorter in 2 of 3 configurations, down to 0.60 times "
        "[0.60, 0.60] (h2o 32, easy); over problems that both solve, longer in 0 of 3."
    )
    assert "A solved problem takes clearly fewer keys in 2 of 3" in said


def test_both_directions_are_counted() -> None:
    said = say(sweep({16: 0.25, 32: 1.5, 64: 1.2}))
    assert "longer in 2 of 3 configurations, up to 1.50 times" in said
    assert ", and shorter in 1;" in said


def test_a_difference_within_its_interval_is_called_unclear() -> None:
    full = [sample(i, tokens=100) for i in range(8)]
    mixed = [sparse(i, tokens=80 if i % 2 else 125) for i in range(8)]
    said = say(full + mixed)
    assert said.startswith(
        "Sparse attention changed output length clearly in none of 1 configuration; the largest "
        "difference is 1.02 times"
    )


def test_a_saving_within_its_interval_is_not_said() -> None:
    full = [sample(i, keys_read=1000.0) for i in range(8)]
    mixed = [sparse(i, keys_read=1800.0 if i < 2 else 700.0) for i in range(8)]
    (row,) = [row for row in rows(full + mixed, seed=0) if row.backend == "h2o"]
    assert row.keys_read_per_solved_ratio is not None
    assert row.keys_read_per_solved_ratio < 1
    assert "takes clearly fewer keys in 0 of 1" in say(full + mixed)


def test_nothing_solved_is_no_saving() -> None:
    said = say(sweep({32: 0.5}, correct=(False,) * 8))
    assert "takes clearly fewer keys in 0 of 1" in said


def test_losing_three_of_four_answers_keeps_nothing() -> None:
    """Not rejecting a change is not keeping: four problems can say nothing."""
    full = [sample(i) for i in range(4)]
    said = say(full + [sparse(i, correct=i == 0, keys_read=1.0) for i in range(4)])
    assert "too few problems" in said
    assert "keep accuracy" not in said


@pytest.mark.parametrize(
    ("problems", "lost", "kept"),
    [(72, 0, None), (73, 0, True), (200, 1, True), (200, 5, False), (1000, 30, True)],
)
def test_accuracy_is_kept_where_a_loss_of_five_points_is_ruled_out(
    problems: int, lost: int, kept: bool | None
) -> None:
    full = [sample(i) for i in range(problems)]
    small = [sparse(i, correct=i >= lost, keys_read=500.0) for i in range(problems)]
    (row,) = [row for row in rows(full + small, seed=0) if row.backend == "h2o"]
    assert keeps_accuracy(row) is kept
    said = say(full + small)
    assert ("1 of which keep accuracy (a loss of 5 points ruled out)" in said) == bool(kept)
    assert ("0 of which keep accuracy" in said) == (kept is False)
    assert ("too few problems" in said) == (kept is None)


def test_the_cap_is_named_where_it_cut() -> None:
    samples = [sample(i) for i in range(4)]
    samples += [sparse(i, tokens=200, status="capped", correct=False) for i in range(4)]
    assert "4 of 4 cut at the cap" in say(samples)


def test_censored_pairs_are_said() -> None:
    cut = {"status": "capped", "finish": "length", "correct": False}
    samples = [*sweep({32: 1.5}), sample(9, **cut), sparse(9, tokens=150, **cut)]
    assert "(1 pairs left out: full attention was cut at its cap)" in say(samples)
    samples = [sample(9, **cut), sparse(9, **cut)]
    said = say(samples)
    assert said.startswith("Nothing can be said about output length")
    assert "(1 pairs left out" in said


def test_a_configuration_that_is_not_complete_is_in_no_sentence() -> None:
    samples = sweep({32: 1.5, 64: 1.2})
    samples[-1] = failed(7, status="missing", budget=64)
    assert "longer in 1 of 1 configuration, up to 1.50 times" in say(samples)


def test_guardian_saves_and_costs() -> None:
    samples = sweep({32: 2.0, 64: 1.0})
    watched = []
    for one in samples:
        if one.backend == "h2o":
            long = one.budget == 32
            cut = guarded(one, (one.tokens or 0) // 2 if long else None)
            lost = long and one.item_id in "01"
            watched.append(Sample(**{**vars(cut), "correct": not lost}))
    # 2720 and 1360 tokens without, 1360 and 1360 with
    assert say(samples + watched).endswith(
        " Guardian saves 33.3% of their tokens, losing 2 and gaining 0 of 16 answers."
    )


def test_guardian_that_never_fires_saves_nothing() -> None:
    samples = sweep({32: 1.5})
    said = say(samples + [guarded(one, None) for one in samples])
    assert "Guardian saves 0.0% of their tokens, losing 0 and gaining 0" in said


def test_one_problem_is_not_called_clear() -> None:
    said = say([sample(0), sparse(0, tokens=300)])
    assert "clearly in none of 1 configuration" in said
    assert "3.00 times (one problem, no interval)" in said


def test_without_anything_to_compare_it_says_so() -> None:
    for samples in ([], [sample(0)], [sparse(0)], [sample(0), failed(0)]):
        assert say(samples).startswith("Nothing can be said about output length")


def test_models_are_named_where_there_are_several() -> None:
    samples = sweep({32: 1.5})
    other = [Sample(**{**vars(one), "model": "other"}) for one in sweep({32: 1.8})]
    assert "1.80 times [1.80, 1.80] (h2o 32, easy, other)" in say(samples + other)
