"""The finding must follow the numbers, wherever they point."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_samples import failed, guarded, sample, sparse

from experiments.report.claims import keeps_accuracy
from experiments.report.measures import finding, pooled_rows, rows
from experiments.report.statistics import LEAST
from experiments.store.samples.sample import Sample, Shorter


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
        "Outputs are longer in 2 and shorter in 0 of 3 configurations, 2 of which differ in length "
        "at all; at most 1.50 times [1.50, 1.50] (h2o 32, easy). Where both solve, outputs are "
        "longer in 2 and shorter in 0 of 2 with 6 that differ. A solved problem takes fewer keys "
        "in 0 and more in 2 of 3. Answers are lost in 0 of 3 configurations; that accuracy is "
        "kept, too few problems say anywhere."
    )


def test_shorter_outputs_are_said_to_be_shorter() -> None:
    said = say(sweep({32: 0.6, 64: 0.9, 128: 1.0}))
    assert said.startswith("Outputs are longer in 0 and shorter in 2 of 3 configurations")
    assert "A solved problem takes fewer keys in 2 and more in 0 of 3" in said


def test_both_directions_are_counted_by_one_rule() -> None:
    """Also where outputs were cut at the cap: what is cut is cut on both sides of a ratio."""
    samples = sweep({16: 0.25, 32: 1.5, 64: 1.2})
    assert "longer in 2 and shorter in 1 of 3 configurations" in say(samples)
    samples[-1] = replace(samples[-1], status="capped", finish="length", correct=False)
    assert "longer in 2 and shorter in 1 of 3 configurations" in say(samples)


def test_a_difference_within_its_interval_is_called_unclear() -> None:
    full = [sample(i, tokens=100) for i in range(8)]
    mixed = [sparse(i, tokens=80 if i % 2 else 140) for i in range(8)]
    said = say(full + mixed)
    assert said.startswith("Outputs are longer in 0 and shorter in 0 of 1 configuration, 1 of")
    assert "the largest difference, not clear, is 1.06 times [" in said


def test_a_saving_within_its_interval_is_not_said() -> None:
    full = [sample(i, keys_read=1000.0) for i in range(8)]
    mixed = [sparse(i, keys_read=1800.0 if i < 2 else 700.0) for i in range(8)]
    (row,) = [row for row in rows(full + mixed, seed=0) if row.backend == "h2o"]
    assert row.keys_read_per_solved_ratio.estimate is not None
    assert row.keys_read_per_solved_ratio.estimate < 1
    assert "takes fewer keys in 0 and more in 0 of 1" in say(full + mixed)


def test_nothing_solved_is_no_saving() -> None:
    said = say(sweep({32: 0.5}, correct=(False,) * 8))
    assert "takes fewer keys in 0 and more in 0 of 1, 1 of which solve none" in said
    assert "Answers are lost in 1 of 1 configuration" in said


def test_losing_three_of_four_answers_keeps_nothing() -> None:
    """Not rejecting a change is not keeping: four problems can say nothing."""
    full = [sample(i) for i in range(4)]
    said = say(full + [sparse(i, correct=i == 0, keys_read=1.0) for i in range(4)])
    assert "takes fewer keys in 0 " in said
    assert "Answers are lost in 0 of 1 configuration" in said
    assert said.endswith("that accuracy is kept, too few problems say anywhere.")


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
    assert ("is kept (a loss of 5 points ruled out) in 1 of 1" in said) == bool(kept)
    assert ("is kept (a loss of 5 points ruled out) in 0 of 1" in said) == (kept is False)
    assert ("too few problems" in said) == (kept is None)


def test_levels_that_say_nothing_alone_say_it_together() -> None:
    samples = [
        make(i, dataset=level)
        for level in ("easy", "medium")
        for i in range(40)
        for make in (sample, sparse)
    ]
    together = pooled_rows(samples, seed=0)
    assert [(row.dataset, row.backend, row.problems) for row in together] == [
        ("all", "full", 80), ("all", "h2o", 80)
    ]  # fmt: skip
    said = finding(rows(samples, seed=0), together)
    assert "is kept (a loss of 5 points ruled out) in 1 of 1 over all data sets together" in said
    one = [one for one in samples if one.dataset == "easy"]
    assert pooled_rows(one, seed=0) == []
    # A configuration that a level lacks is not pooled.
    some = [one for one in samples if one.backend == "full" or one.dataset == "easy"]
    assert [row.backend for row in pooled_rows(some, seed=0)] == ["full"]


def test_the_cap_is_named_where_it_cut() -> None:
    samples = [sample(i) for i in range(6)]
    samples += [sparse(i, tokens=200, status="capped", correct=False) for i in range(6)]
    assert "6 of 6 cut at the cap" in say(samples)


def test_what_is_read_at_a_smaller_cap_is_said_of_it() -> None:
    def shorter(one: Sample) -> Sample:
        cut = (one.tokens or 0) > 2 * (100 + 20 * int(one.item_id))
        tokens = min(one.tokens or 0, 2 * (100 + 20 * int(one.item_id)))
        less = Shorter(2, "capped" if cut else "ok", tokens, one.correct and not cut, 1000.0)
        return replace(one, shorter=(less,))

    samples = [shorter(one) for one in sweep({32: 3.0, 64: 0.5})]
    found = rows(samples, seed=0, factor=4)
    said = finding(found, factor=4)
    assert "longer in 1 and shorter in 1 of 2 configurations" in said
    assert "at most 3.00 times" in said
    assert "read at 2 times full attention's length instead of 4, longer in 1" in said
    assert "Where both solve, outputs are longer in 1 and shorter in 1 of 2" in said
    assert "read at 2 times, longer in 0 and shorter in 1 of 1 with 6 that differ" in said
    (row,) = [row for row in found if row.budget == 32]
    assert (row.caps[0].capped, row.caps[0].accuracy.estimate, row.accuracy.estimate) == (8, 0, 1)
    assert row.caps[0].length_ratio.estimate == pytest.approx(2)


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
    assert "longer in 1 and shorter in 0 of 1 configuration" in say(samples)


def test_what_guardian_saves_and_costs_is_told_of_answers_that_stood() -> None:
    samples = [
        replace(one, output="same" if one.budget != 32 else "other")
        for one in sweep({32: 2.0, 64: 1.0})
    ]
    watched = []
    for one in samples:
        if one.backend == "h2o":
            long = one.budget == 32
            cut = guarded(one, (one.tokens or 0) // 2 if long else None)
            lost = long and one.item_id in "01"
            watched.append(Sample(**{**vars(cut), "correct": not lost}))
    # 2720 and 1360 tokens without, 1360 and 1360 with
    assert say(samples + watched).endswith(
        " Guardian fires in 1 of 2 configurations, 33.3% fewer tokens over all; it gains 0 answers "
        "and loses 2 of 16, 8 of which stand in other texts than full attention's."
    )


def test_guardian_that_never_fires_saves_nothing() -> None:
    samples = sweep({32: 1.5})
    said = say(samples + [guarded(one, None) for one in samples])
    assert "Guardian fires in 0 of 1 configuration, 0.0% fewer" in said


def test_few_problems_are_not_called_clear() -> None:
    for problems in (1, 5):
        pairs = [make(i) for i in range(problems) for make in (sample, sparse)]
        said = say([replace(one, tokens=300 if one.budget else 150) for one in pairs])
        assert said.startswith("Outputs are longer in 0 and shorter in 0 of 1 configuration")
        assert f"2.00 times ({problems} that differ, too few for an interval)" in said


def test_half_a_per_cent_is_not_longer() -> None:
    full = [sample(i, tokens=10_000) for i in range(20)]
    for tokens, longer in ((10_050, 0), (10_250, 1)):
        said = say(full + [sparse(i, tokens=tokens) for i in range(20)])
        assert said.startswith(f"Outputs are longer in {longer} and shorter in 0 of 1")


def test_without_anything_to_compare_it_says_so() -> None:
    for samples in ([sparse(0)], [sample(0), failed(0)]):
        assert say(samples).startswith("Nothing can be said about output length")
    for samples in ([], [sample(0)]):
        assert say(samples) == ""


def test_models_are_named_where_there_are_several() -> None:
    samples = sweep({32: 1.5})
    other = [Sample(**{**vars(one), "model": "other"}) for one in sweep({32: 1.8})]
    assert "1.80 times [1.80, 1.80] (h2o 32, easy, other)" in say(samples + other)


def test_nothing_is_said_that_the_null_says_too() -> None:
    """Full attention with another seed is longer as well: then length says nothing of h2o."""
    samples = sweep({32: 1.5})
    null = [
        replace(one, backend="full again", budget=None, role="null")
        for one in samples
        if one.budget
    ]
    assert "longer in 1 and" in say(samples)
    said = say(samples + null)
    assert "longer in 0 and shorter in 0 of 1 configuration, 1 of which differ" in said
    assert "takes fewer keys in 0 and more in 0 of 1" in said
    assert "The null, full attention beside itself (full again): 1.50 [1.50, 1.50] on easy" in said
    quiet = [replace(one, tokens=(one.tokens or 0) * 2 // 3, keys_read=1000.0) for one in null]
    assert "longer in 1 and" in say(samples + quiet)


def test_controls_are_told_apart_from_methods() -> None:
    samples = sweep({32: 1.5})
    oracle = [
        replace(one, backend="oracle", budget=16, role="control", tokens=100 + 20 * i)
        for i, one in enumerate(one for one in samples if one.budget)
    ]
    said = say(samples + oracle)
    assert "longer in 1 and shorter in 0 of 1 configuration" in said
    assert "Controls: oracle 16 solves 8 of 8, 1.00 times as long." in said


def test_what_drops_and_decodes_again_is_said_to_add() -> None:
    samples = sweep({32: 1.0, 64: 1.0})
    again = [replace(guarded(one, None), dropped_tokens=50) for one in samples if one.budget]
    said = say(samples + [replace(one, action="regenerate") for one in again])
    assert "Guardian fires in 0 of 2 configurations and adds tokens in 2" in said
    assert "% more tokens over all" in said


def test_of_many_detectors_the_shown_one_comes_first_and_the_rest_is_counted() -> None:
    samples = sweep({32: 2.0})
    sparse_ones = [one for one in samples if one.budget]
    names = ("a", "b", "c", "guardian")
    watched = [replace(guarded(one, 50), detector=name) for name in names for one in sparse_ones]
    said = say(samples + watched)
    assert said.index("Guardian fires in 1 of 1") < said.index(" A fires") < said.index("B fires")
    assert said.endswith(" 1 more detector or action is in Table 1 and Figure 5.")


def test_an_own_detectors_name_keeps_its_capitals() -> None:
    samples = sweep({32: 2.0})
    mine = [replace(guarded(one, 50), detector="mine:Streaks") for one in samples if one.budget]
    assert "Mine:Streaks fires" in say(samples + mine)


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
    found = re.search(r"Outputs are longer in (\d+) and shorter in (\d+)", said)
    longer, shorter = map(int, found.groups()) if found else (0, 0)
    found = re.search(r"takes fewer keys in (\d+) and more in (\d+)", said)
    cheaper, dearer = map(int, found.groups()) if found else (0, 0)
    lost, kept = (
        int((re.search(pattern, said) or [0, 0])[1])
        for pattern in (r"lost in (\d+) of", r"ruled out\) in (\d+) of")
    )
    for budget in (32, 64):
        mine = [one for one in paired if one.budget == budget]
        logs = [
            max(-math.log(2), min(math.log(2), math.log((one.tokens or 0) / 1000))) for one in mine
        ]
        differ = sum(one != 0 for one in logs)
        longer -= differ >= LEAST and sum(logs) > math.log(1.02) * len(logs)
        shorter -= differ >= LEAST and sum(logs) < -math.log(1.02) * len(logs)
        solved = sum(bool(one.correct) for one in mine)
        cost = sum(one.keys_read or 0 for one in mine) * len(mine)
        beside = 1e6 * len(mine) * solved
        cheaper -= len(mine) >= LEAST <= solved and cost < beside
        dearer -= len(mine) >= LEAST <= solved and cost > beside
        wrong = [one.item_id for one in plain if one.budget == budget and not one.correct]
        gone = [item for item in wrong if full[item].correct]
        lost -= len(gone) >= LEAST
        right = [one.item_id for one in plain if one.budget == budget and one.correct]
        come = [item for item in right if not full[item].correct]
        kept -= problems > 72 and (len(gone) - len(come)) / problems < 0.05
    assert max(longer, shorter, cheaper, dearer, lost, kept) <= 0, said
    if not ended:
        assert said.startswith("Nothing can be said about output length")
        assert "fewer keys" not in said
    paid = [
        sum(one.paid_tokens or 0 for one in samples if one.budget and one.detector == name)
        for name in ("guardian", "none")
    ]
    assert ("and adds tokens" in said) <= (paid[0] > paid[1] and problems >= LEAST)
