"""The finding must follow the numbers, wherever they point."""

from __future__ import annotations

from collections.abc import Sequence

from synthetic_samples import failed, guarded, sample, sparse

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
        "Sparse attention made outputs longer in 2 of 3 configurations, most with h2o at budget 32 "
        "on easy: 1.50 times the length under full attention (95% interval 1.50 to 1.50), accuracy "
        "+0.0 points, 1.50 times the keys per solved problem; of the 3 that keep accuracy (McNemar "
        "p >= 0.05) 2 are longer and 0 shorter; a solved problem takes fewer keys than under full "
        "attention in 0 of 3 configurations."
    )


def test_shorter_outputs_are_said_to_be_shorter() -> None:
    said = say(sweep({32: 0.6, 64: 0.9, 128: 1.0}))
    assert said.startswith(
        "Sparse attention made outputs shorter in 2 of 3 configurations, most with h2o at budget "
        "32 on easy: 0.60 times the length under full attention (95% interval 0.60 to 0.60)"
    )
    assert "longer in" not in said
    assert "a solved problem takes fewer keys than under full attention in 2 of 3" in said


def test_the_majority_names_the_direction_and_the_rest_is_counted() -> None:
    said = say(sweep({16: 0.25, 32: 1.5, 64: 1.2}))
    assert "longer in 2 of 3 configurations and shorter in 1, most with h2o at budget 32" in said
    said = say(sweep({16: 4.0, 32: 0.8, 64: 0.9}))
    assert "shorter in 2 of 3 configurations and longer in 1, most with h2o at budget 32" in said


def test_a_difference_within_its_interval_is_called_unclear() -> None:
    full = [sample(i, tokens=100) for i in range(8)]
    mixed = [sparse(i, tokens=80 if i % 2 else 125) for i in range(8)]
    said = say(full + mixed)
    assert said.startswith(
        "Sparse attention changed output length clearly in none of 1 configuration; the largest "
        "difference is with h2o at budget 32 on easy: 1.02 times"
    )


def test_nothing_solved_is_said_and_is_no_saving() -> None:
    said = say(sweep({32: 0.5}, correct=(False,) * 8))
    assert "accuracy -100.0 points, nothing solved" in said
    assert "takes fewer keys than under full attention in 0 of 1 configuration" in said
    assert "keep accuracy" not in said


def test_the_cap_is_named_where_it_cut() -> None:
    samples = [sample(i) for i in range(4)]
    samples += [sparse(i, tokens=200, status="capped", correct=False) for i in range(4)]
    assert "4 of 4 outputs cut at the cap" in say(samples)


def test_guardian_saves_and_costs() -> None:
    samples = sweep({32: 2.0, 64: 1.0})
    watched = []
    for one in samples:
        if one.backend == "h2o":
            long = one.budget == 32
            cut = guarded(one, (one.tokens or 0) // 2 if long else None)
            lost = long and one.item_id in "01"
            watched.append(Sample(**{**vars(cut), "correct": not lost}))
    said = say(samples + watched)
    # 2720 and 1360 tokens without, 1360 and 1360 with
    assert said.endswith(
        "Guardian saves 33.3% of all their tokens (50.0% there), losing 2 and gaining 0 of 16 "
        "answers, and makes that 0 of 2."
    )


def test_guardian_that_never_fires_saves_nothing() -> None:
    samples = sweep({32: 1.5})
    said = say(samples + [guarded(one, None) for one in samples])
    assert "Guardian saves 0.0% of all their tokens (0.0% there), losing 0 and gaining 0" in said


def test_one_problem_is_not_called_clear() -> None:
    said = say([sample(0), sparse(0, tokens=300)])
    assert "clearly in none of 1 configuration" in said
    assert "3.00 times the length under full attention (one problem, no interval)" in said


def test_without_anything_to_compare_it_says_so() -> None:
    for samples in ([], [sample(0)], [sparse(0)], [sample(0), failed(0)]):
        assert say(samples).startswith("Nothing can be said about output length")


def test_models_are_named_where_there_are_several() -> None:
    samples = sweep({32: 1.5})
    other = [Sample(**{**vars(one), "model": "other"}) for one in sweep({32: 1.8})]
    assert "on easy (other): 1.80 times" in say(samples + other)
