"""The finding must follow the numbers, wherever they point."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_samples import failed, guarded, sample, sparse

from experiments.report.finding import LEAST, keeps_accuracy
from experiments.report.measures import finding, rows
from experiments.store.samples.sample import Sample


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
        "problem takes clearly fewer keys in 0 of 3."
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
    assert "takes clearly fewer keys in 0 of 1" in said
    assert "keep" not in said


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
    assert "(1 pair left out: full attention was cut at its cap)" in say(samples)
    samples = [sample(9, **cut), sparse(9, **cut)]
    said = say(samples)
    assert said.startswith("Nothing can be said about output length")
    assert "(1 pair left out" in said


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
        " Guardian saves tokens in 1 of 2 configurations, 33.3% fewer over all, losing 2 and "
        "gaining 0 of 16 answers."
    )


def test_guardian_that_never_fires_saves_nothing() -> None:
    samples = sweep({32: 1.5})
    said = say(samples + [guarded(one, None) for one in samples])
    assert "Guardian changes tokens clearly in none of 1 configuration, 0.0% fewer" in said


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


def test_shorter_is_not_said_of_what_was_cut() -> None:
    """Its length is a lower bound: how long it would have got is not known."""
    samples = sweep({32: 0.6})
    samples[-1] = replace(samples[-1], status="capped", finish="length", correct=False)
    assert "clearly in none of 1 configuration" in say(samples)


def test_what_drops_and_decodes_again_is_said_to_add() -> None:
    samples = sweep({32: 1.0, 64: 1.0})
    again = [replace(guarded(one, None), dropped_tokens=50) for one in samples if one.budget]
    said = say(samples + [replace(one, action="regenerate") for one in again])
    assert "Guardian adds tokens in 2 of 2 configurations" in said
    assert "% more over all" in said


def test_of_many_detectors_the_shown_one_comes_first_and_the_rest_is_counted() -> None:
    samples = sweep({32: 2.0})
    sparse_ones = [one for one in samples if one.budget]
    names = ("a", "b", "c", "guardian")
    watched = [replace(guarded(one, 50), detector=name) for name in names for one in sparse_ones]
    said = say(samples + watched)
    assert (
        said.index("Guardian saves tokens in 1 of 1") < said.index(" A saves") < said.index("B sa")
    )
    assert said.endswith(" 1 more detector or action is in Table 1 and Figure 5.")


def test_an_own_detectors_name_keeps_its_capitals() -> None:
    samples = sweep({32: 2.0})
    mine = [replace(guarded(one, 50), detector="mine:Streaks") for one in samples if one.budget]
    assert "Mine:Streaks saves" in say(samples + mine)


# ---------------------------------------------------------------- whatever the numbers are


@st.composite
def studies(draw: st.DrawFn) -> list[Sample]:
    """A few problems under full attention, two budgets and a detector, ended and solved anyhow."""
    problems = draw(st.sampled_from([1, 2, 5, 6, 9, 80]))
    # What all problems share makes clear cases likely; what each has apart makes unclear ones so.
    length, cost, keeps = (draw(st.sampled_from([0.5, 1.0, 1.6])) for _ in range(3))
    spread = draw(st.sampled_from([0.0, 0.4]))
    solved = draw(st.sampled_from([0.0, 0.8, 1.0]))
    cut, cut_full = draw(st.sampled_from([0.0, 0.2, 1.0])), draw(st.sampled_from([0.0, 0.3, 1.0]))
    random = draw(st.randoms(use_true_random=False))
    found = []
    for item in range(problems):
        is_cut = random.random() < cut_full
        ended = {"status": "capped", "finish": "length"} if is_cut else {}
        found.append(sample(item, tokens=1000, keys_read=1e6, correct=not is_cut, **ended))
        for budget in (32, 64):
            times = 1 + spread * random.uniform(-1, 1)
            ended = {"status": "capped", "finish": "length"} if random.random() < cut else {}
            one = sparse(
                item, budget=budget, tokens=max(2, int(1000 * length * times)),
                keys_read=1e6 * cost * times, correct=random.random() < solved, **ended,
            )  # fmt: skip
            watched = guarded(one, max(1, int((one.tokens or 0) * keeps)) if keeps < 1 else None)
            dropped = int((one.tokens or 0) * (keeps - 1)) if keeps > 1 else 0
            found += [one, replace(watched, dropped_tokens=dropped)]
    return found


@settings(max_examples=40, deadline=None)
@given(studies())
def test_no_word_where_its_rule_does_not_hold(samples: list[Sample]) -> None:
    """The rules again, from the samples themselves: what each word needs at the very least."""
    said = say(samples)
    problems = len({one.item_id for one in samples})
    full = {one.item_id: one for one in samples if one.backend == "full"}
    ended = {item for item, one in full.items() if one.status == "ok"}
    plain = [one for one in samples if one.budget and one.detector == "none"]
    paired = [one for one in plain if one.item_id in ended]
    longer = int((re.search(r"outputs longer in (\d+)", said) or [0, 0])[1])
    shorter = int((re.search(r"shorter in (\d+)", said) or [0, 0])[1])
    cheaper, kept = (
        int((re.search(pattern, said) or [0, 0])[1])
        for pattern in (r"clearly fewer keys in (\d+) of", r"(\d+) of which keep accuracy")
    )
    few = len(ended) < LEAST
    for budget in (32, 64):
        mine = [one for one in paired if one.budget == budget]
        ratios = [(one.tokens or 0) / 1000 for one in mine]
        any_solved = any(one.correct for one in mine)
        may_be_longer = not few and sum(ratios) > len(ratios)
        may_be_shorter = not few and sum(ratios) < len(ratios)
        may_be_shorter &= all(one.status == "ok" for one in mine)
        dearer = sum(one.keys_read or 0 for one in mine) * len(mine)
        dearer_than = 1e6 * len(mine) * sum(bool(one.correct) for one in mine)
        longer -= may_be_longer
        shorter -= may_be_shorter
        cheaper -= not few and any_solved and dearer < dearer_than
        lost = sum(not one.correct for one in plain if one.budget == budget)
        lost -= sum(not one.correct for one in full.values())
        kept -= problems > 72 and lost / problems < 0.05
    assert max(longer, shorter, cheaper, kept) <= 0, said
    if not ended:
        assert said.startswith("Nothing can be said about output length")
        assert "fewer keys" not in said
    paid = [
        sum(one.paid_tokens or 0 for one in samples if one.budget and one.detector == name)
        for name in ("guardian", "none")
    ]
    assert ("Guardian saves tokens" in said) <= (paid[0] < paid[1] and problems >= LEAST)
    assert ("Guardian adds tokens" in said) <= (paid[0] > paid[1] and problems >= LEAST)
