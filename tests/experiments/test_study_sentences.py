"""Conclusions of the study: what its rules let it say, and silence where they do not."""

from __future__ import annotations

from typing import Any

import study_advice
import study_ending
import study_sentences
from study_worlds import world


def test_a_kept_prompt_is_beside_the_same_without() -> None:
    assert study_sentences.prompt_kept(world(0.5)) == ""
    same, shorter = world(0.5, 0.5), world(0.5, 0.0)
    assert "shorter in 0 and longer in 0." in study_sentences.prompt_kept(same)
    told = study_sentences.prompt_kept(shorter)
    assert "0 of 1 methods and budgets gain answers and 0 lose some" in told
    assert "shorter in 1 (h2o 64 0." in told
    (one,) = shorter["prompt"]
    one |= {"gained": 9, "lost": 0, "p": 0.01, "p_holm": 0.01}
    assert "1 of 1 methods and budgets gain answers (h2o 64)" in study_sentences.prompt_kept(
        shorter
    )
    assert "gain answers (" not in study_sentences.chosen_keys(shorter)


def test_methods_are_beside_controls_at_the_same_budget() -> None:
    for name, control in (("random", study_sentences.drawn_keys),
                          ("relatives", study_sentences.relatives)):  # fmt: skip
        assert control(world(0.5)) == ""
        null, effect = world(0.0, controls=True), world(0.5, controls=True)
        nothing = "solve more and 0 fewer; on all problems texts are longer in 0 and shorter in 0."
        assert control(null).endswith(nothing)
        told = control(effect)
        assert "at the same budget, 60 problems: of " in told
        assert "solve more and 0 fewer; on all problems texts are longer in 1 (h2o 64 1." in told
        one = next(one for one in effect[name] if one["backend"] == "h2o")
        one |= {"gained": 9, "lost": 0, "p": 0.01, "p_holm": 0.01}
        assert " 1 solve more (h2o 64) and 0 fewer;" in control(effect)
        one |= {"gained": 0, "lost": 9}
        assert " 0 solve more and 1 fewer (h2o 64);" in control(effect)
    assert {one["backend"] for one in effect["random"]} == {"h2o", "quest"}
    assert {one["backend"] for one in effect["relatives"]} == {"h2o"}


def test_a_problem_on_which_full_attention_does_not_end_is_in_no_comparison() -> None:
    found = world(0.5, 0.5, cut=2)
    compared = [row["against_full"] for row in found["rows"]] + found["selection"] + found["prompt"]
    assert {one["n"] for one in compared} == {58}


def test_sentences_say_what_the_rules_let_them() -> None:
    null, effect = world(0.0), world(0.5)
    told = study_sentences.length(null)
    assert "longer in 0 of 2, in 0 beyond the noise control; shorter in 0;" in told
    assert "longer than full attention's in 0 of 2 cells" in study_sentences.all_lengths(null)
    h2o = next(row for row in effect["rows"] if row["backend"] == "h2o")
    ratio = h2o["against_full"]["ratio_solved"]
    number = f"{ratio['estimate']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    assert f"longer in 1 of 2 (h2o 64 {number})" in study_sentences.length(effect)
    kept = ratio["estimate"]
    ratio["estimate"] = 1.019
    assert "longer in 0 of 2" in study_sentences.length(effect)  # not by two per cent
    ratio["estimate"] = kept
    everyone = h2o["against_full"]["ratio_all"]
    told = study_sentences.all_lengths(effect)
    assert f"in 1 of 2 cells, {everyone['estimate']:.2f} times; in 1 beyond" in told
    noise = study_sentences.null_of(effect)
    assert noise is not None
    noise["against_full"]["ratio_all"] |= {"low": 1.1, "high": everyone["low"] + 0.01}
    assert "in 0 beyond what the noise control does;" in study_sentences.all_lengths(effect)
    for found in (null, effect):  # nothing is lost, and nothing costs less
        assert "lost in 0 of 2, and gained in 0." in study_sentences.correct(found)
        assert "Of 2 cells 0 lose" in study_sentences.worth_it(found)
        assert "the other way round in 0 of 2" in study_sentences.until(found)
    assert "it cannot be said that there are more tokens" in study_sentences.excess(null)
    assert "tokens a text more than full attention" in study_sentences.excess(effect)
    h2o["against_full"]["p_holm"] = h2o["against_full"]["p"] = 0.01
    h2o["against_full"] |= {"lost": 9, "gained": 0}
    h2o["against_full"]["change"] = {"estimate": -0.15, "low": -0.26, "high": -0.02}
    other = noise["against_full"]
    other["change"] = {"estimate": -0.02, "low": -0.08, "high": 0.01}
    told = "lost in 1 of 2, 15 points of accuracy, and gained in 0"
    assert told in study_sentences.correct(effect)
    assert "; 1 lose no more than the noise control may (h2o 64)." in study_sentences.correct(
        effect
    )
    other["change"] = {"estimate": 0.0, "low": -0.01, "high": 0.01}
    assert told + "." in study_sentences.correct(effect)
    h2o["against_full"]["p_holm"] = None  # a test that is not there says nothing
    assert "lost in 0 of 2" in study_sentences.correct(effect)
    h2o["against_full"] |= {"right_there_alone": 9, "right_here_alone": 0}
    assert "the other way round in 1 of 2" in study_sentences.until(effect)
    low = {"estimate": 0.5, "low": 0.4, "high": 0.6}
    h2o["against_full"]["per_solved_ratio"]["keys"] = low
    assert "in keys: less in 1," in study_sentences.cost(effect)
    h2o["against_full"]["change"] = {"estimate": -0.01, "low": -0.04, "high": 0.02}
    told = "1 lose fewer than 5 points"
    assert told in study_sentences.worth_it(effect)
    h2o["against_full"]["change"]["low"] = -0.05
    assert told not in study_sentences.worth_it(effect)


def test_other_levels_are_counted_by_themselves() -> None:
    document: dict[str, Any] = {
        "caps": [2, 8],
        "levels": {
            name: {"at": {"8": world(effect)}, "full": {"8": {"n": 60}}}
            for name, effect in (("hard", 0.0), ("medium", 0.5), ("retold", 0.0))
        },
    }
    for name, lost in (("medium", 0), ("retold", 1)):
        rows = document["levels"][name]["at"]["8"]["rows"]
        one = next(row for row in rows if row["backend"] == "oracle")["against_full"]
        one["lost"], one["ratio_solved"]["within"] = lost, True
    medium, retold = study_sentences.other_levels({"chosen": document})
    assert medium.startswith("- (3) On `medium`, 60 problems, half the budgets: on all problems ")
    assert "longer in 1 of 2 cells (1 beyond the noise control), shorter in 0;" in medium
    assert "where both solve longer in 1 (h2o 64 1." in medium
    assert "1 of them beyond the noise control" in medium
    assert "on all problems longer in 0 of 2 cells" in retold
    assert "answers lost in 0, gained in 0; where both solve longer in 0, " in retold
    assert "at 1 of 1 budgets, the least 64 (0 of 60: at most 6.0%)." in medium
    assert "within 5% at 0 of 1 budgets." in retold


def test_an_oracle_is_free_from_the_largest_budget_down() -> None:
    found: dict[str, Any] = {
        "rows": [{"backend": "oracle", "budget": budget} for budget in (8, 16, 32, 64)],
        "sparsity_free": [8, 32, 64],
    }
    assert [row["budget"] for row in study_sentences.free_budgets(found)] == [64, 32]


def test_the_first_sentence_answers_where_the_rules_do() -> None:
    for lost, free, said in ((2, [64], "With the right keys yes"), (1, [64], "1 lose answers"),
                             (2, [], "costs nothing at 0 budgets")):  # fmt: skip
        found = world(0.5)
        for at, row in enumerate(row for row in found["rows"] if row["role"] == "method"):
            row["against_full"] |= {"lost": 9, "gained": 0, "p_holm": 0.01 if at < lost else 0.5}
            longer = {"estimate": 1.2, "low": 1.1, "high": 1.4, "p_holm": 0.01}
            row["against_full"]["ratio_all"] |= longer
        found["sparsity_free"] = free
        assert said in study_sentences.answer(found)


def test_verdicts_for_who_deploys_follow_the_intervals() -> None:
    def cell(change: tuple[float, float], keys: tuple[float, float], solved: int = 9) -> str:
        three = [
            {"estimate": sum(one) / 2, "low": one[0], "high": one[1]} for one in (change, keys)
        ]
        return study_advice.Judged("ground", "quest", "quest 64", *three, solved, 0.5).verdict

    assert cell((-0.04, 0.1), (0.5, 0.9)) == "keeps the answers, costs fewer keys"
    assert cell((-0.2, -0.01), (0.5, 1.1)) == "loses answers"
    assert cell((-0.2, 0.01), (0.5, 1.1)) == "cannot be told"
    assert cell((-0.04, -0.01), (1.1, 1.2)) == "loses fewer than 5 points, costs more keys"
    assert cell((-0.9, -0.8), (0.0, 0.0), 0) == "loses answers, costs more keys"


def test_detectors_are_told_by_what_follows_where_few_honest_texts_are_stopped() -> None:
    share = {"estimate": 0.3, "low": 0.2, "high": 0.4}

    def row(detector: str, action: str, bound: bool, gained: int) -> dict[str, Any]:
        return {
            "dataset": "hard", "detector": detector, "action": action, "same_bound": bound,
            "of_full": 600, "n": 2400, "saved": share, "lost": 7, "gained": gained, "solved": 1200,
        }  # fmt: skip

    every = [row("cycle", "stop", True, 0), row("guardian", "stop", False, 0),
             row("cycle", "answer", True, 5), row("guardian", "answer", False, 9)]  # fmt: skip
    other = {**every[0], "dataset": "medium"}
    told = study_ending.detectors({"detectors": [*every, other]}, "hard")
    assert told == (
        "Of 2 detectors 1 stop no more than 1% of full attention's 600 texts, by the upper bound. "
        "Of the methods' tokens they spare: Then stop, 2,400 texts: `cycle` 30.0 [20.0, 40.0]% of "
        "tokens, 7 of 1200 right answers lost, 0 gained. Then answer, 2,400 texts: `cycle` 30.0 "
        "[20.0, 40.0]% of tokens, 7 of 1200 right answers lost, 5 gained."
    )
    told = study_ending.detectors({"detectors": every[1:2]}, "hard")
    assert told.endswith("they spare nothing.")
