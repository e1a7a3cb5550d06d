"""Conclusions of the study: what its rules let it say, and silence where they do not."""

from __future__ import annotations

from typing import Any

import pytest
import study_advice
import study_brief
import study_ending
import study_lengths
import study_selecting
import study_sentences
from study_rules import null_of
from study_worlds import world


def test_a_kept_prompt_is_beside_the_same_without() -> None:
    assert study_selecting.prompt_kept(world(0.5)) == ""
    same, shorter = world(0.5, 0.5), world(0.5, 0.0)
    told = study_selecting.prompt_kept(same)
    assert "60 problems: methods, more solved at 0 of 1 budgets, fewer at 0, and on all" in told
    assert "shorter texts at 0, longer ones at 0. Beside full attention 0 of these 1" in told
    told = study_selecting.prompt_kept(shorter)
    assert "shorter texts at 1 (h2o 64 0." in told
    assert "of 1 that cannot be told (h2o 64 with the prompt: 0 lost, 0 gained)." in told
    (one,) = shorter["prompt"]
    one |= {"gained": 9, "lost": 0, "p": 0.01, "p_holm": 0.01, "solved": 29, "solved_other": 20}
    told = study_selecting.prompt_kept(shorter)
    assert "more solved at 1 of 1 budgets (h2o 64 29 against 20), fewer at 0" in told
    kept = next(row for row in shorter["rows"] if row["kept"])
    kept["against_full"] |= {"gained": 0, "lost": 9, "p_holm": 0.01}
    assert "1 of these 1 methods and budgets still lose answers; of 0" in (
        study_selecting.prompt_kept(shorter)
    )


def test_methods_are_beside_a_random_sample() -> None:
    assert study_selecting.drawn_keys(world(0.5)) == ""
    effect = world(0.5, controls=True)
    assert {one["backend"] for one in effect["random"]} == {"h2o", "quest"}
    assert "60 problems: of 2 methods and budgets 0 solve more and 0 fewer." in (
        study_selecting.drawn_keys(effect)
    )
    assert study_selecting.worse_than_drawn(effect) == []
    one = next(one for one in effect["random"] if one["backend"] == "h2o")
    one |= {"gained": 9, "lost": 0, "p": 0.01, "p_holm": 0.01}
    assert "1 solve more and 0 fewer." in study_selecting.drawn_keys(effect)
    assert study_selecting.worse_than_drawn(effect) == []
    one |= {"gained": 0, "lost": 9, "solved": 20, "solved_other": 29}
    assert "0 solve more and 1 fewer (h2o 64 20 against 29)." in study_selecting.drawn_keys(effect)
    assert study_selecting.worse_than_drawn(effect) == ["h2o"]
    assert "`h2o` solves fewer problems than a random sample" in study_sentences.answer(effect)
    effect["random"].append({**one, "budget": 96, "p_holm": 0.5})  # not at each of its budgets
    assert study_selecting.worse_than_drawn(effect) == []
    effect["random"].pop()
    one["p_holm"] = 0.06
    assert study_selecting.worse_than_drawn(effect) == []
    assert "random" not in study_sentences.answer(effect)


def test_newest_tokens_alone_and_uniform_weights_are_told() -> None:
    assert study_selecting.first_tokens(world(0.5)) == study_selecting.uniform(world(0.5)) == ""
    found = world(0.5, controls=True)
    one = dict(found["random"][0]) | {"backend": "sink", "budget": 64}
    found["window"] = [one | {"solved": 12, "solved_other": 13}]
    told = study_selecting.first_tokens(found)
    assert "60 problems: more are solved in 0 of 1 budgets and fewer in 0 (12 against 13)" in told
    assert "60 of 60 texts at 1 budgets are solved and 0 are cut" in study_selecting.uniform(found)


def test_a_larger_budget_that_solves_fewer_is_named() -> None:
    step = {"backend": "infllm", "budget": 640, "solved": 30, "solved_other": 41, "p_holm": 0.01}
    less: dict[str, Any] = {"budgets": [step | {"lost": 12, "gained": 1}]}
    told = study_lengths.larger_budgets(less)
    assert told.endswith("in 0 of 1 steps, fewer in 1 (infllm 640, 30 after 41).")
    open_: dict[str, Any] = {"budgets": [step | {"lost": 12, "gained": 1, "p_holm": 0.2}]}
    assert study_lengths.larger_budgets(open_).endswith("in 0 of 1 steps, fewer in 0.")


def test_a_problem_on_which_full_attention_does_not_end_is_in_no_comparison() -> None:
    found = world(0.5, 0.5, cut=2)
    compared = [row["against_full"] for row in found["rows"]] + found["selection"] + found["prompt"]
    assert {one["n"] for one in compared} == {58}


def test_sentences_say_what_the_rules_let_them() -> None:
    null, effect = world(0.0), world(0.5)
    told = study_lengths.length(null)
    assert "longer in 0 of 2, in 0 beyond the noise control; shorter in 0;" in told
    assert "longer than full attention's in 0 of 2 cells" in study_lengths.all_lengths(null)
    h2o = next(row for row in effect["rows"] if row["backend"] == "h2o")
    ratio = h2o["against_full"]["ratio_solved"]
    number = f"{ratio['estimate']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    assert f"longer in 1 of 2 (h2o 64 {number})" in study_lengths.length(effect)
    told = study_lengths.length({**effect, "smaller": {2: null}})
    assert told.endswith("where texts that go on are cut: longer in 0, shorter in 0.")
    kept = ratio["estimate"]
    ratio["estimate"] = 1.019
    assert "longer in 0 of 2" in study_lengths.length(effect)  # not by two per cent
    ratio["estimate"] = kept
    everyone = h2o["against_full"]["ratio_all"]
    told = study_lengths.all_lengths(effect)
    assert f"in 1 of 2 cells, {everyone['estimate']:.2f} times; in 1 beyond" in told
    noise = null_of(effect)
    assert noise is not None
    noise["against_full"]["ratio_all"] |= {"low": 1.1, "high": everyone["low"] + 0.01}
    assert "in 0 beyond what the noise control does;" in study_lengths.all_lengths(effect)
    for found in (null, effect):  # nothing is lost, and nothing costs less
        assert "lost in 0 of 2 cells, and gained in 0." in study_lengths.correct(found)
        assert "Of 2 cells 0 lose" in study_lengths.worth_it(found)
        assert "In 0 of 2 cells more problems lose" in study_lengths.until(found)
    assert "it cannot be said that there are more tokens" in study_lengths.excess(null)
    assert "tokens a text more than full attention" in study_lengths.excess(effect)
    h2o["against_full"]["p_holm"] = h2o["against_full"]["p"] = 0.01
    h2o["against_full"] |= {"lost": 9, "gained": 0}
    lost = h2o["against_full"]["change"] = {"estimate": -0.15, "low": -0.26, "high": -0.02}
    other = noise["against_full"]
    told = "lost in 1 of 2 cells, 15 points of accuracy, and gained in 0"
    for low, high, said in (
        (-0.08, 0.01, "0 of these surely lose more than the noise control, 0 surely fewer, of 1"),
        (-0.01, 0.01, "1 of these surely lose more than the noise control, 0 surely fewer, of 0"),
        (-0.5, -0.3, "0 of these surely lose more than the noise control, 1 surely fewer (h2o 64)"),
    ):
        other["change"] = {"estimate": 0.0, "low": low, "high": high}
        assert f"{told}; {said}" in study_lengths.correct(effect)
    h2o["against_full"]["p_holm"] = None  # a test that is not there says nothing
    assert "lost in 0 of 2" in study_lengths.correct(effect)
    h2o["against_full"] |= {"right_there_alone": 9, "right_here_alone": 0}
    assert "In 1 of 2 cells more problems lose" in study_lengths.until(effect)
    low = {"estimate": 0.5, "low": 0.4, "high": 0.6}
    h2o["against_full"]["per_solved_ratio"]["keys"] = low
    assert "fewer in 1; memory" in study_lengths.cost(effect)
    h2o["against_full"]["change"] = {"estimate": -0.01, "low": -0.04, "high": 0.02}
    told = "1 lose fewer than 5 points"
    assert told in study_lengths.worth_it(effect)
    h2o["against_full"]["change"]["low"] = -0.05
    assert told not in study_lengths.worth_it(effect)
    assert lost["low"] == -0.26


def test_costs_are_beside_the_noise_controls() -> None:
    found = world(0.5)
    h2o = next(row for row in found["rows"] if row["backend"] == "h2o")
    noise = null_of(found)
    assert noise is not None
    more = {"estimate": 3.0, "low": 2.0, "high": 4.0}
    for row, high in ((h2o, 4.0), (noise, 1.5)):
        row["against_full"]["per_solved_ratio"]["keys"] = {**more, "high": high}
    noise["against_full"]["per_solved_ratio"]["keys"]["low"] = 1.1
    assert "keys surely more in 1 (1 beyond the noise control)" in study_lengths.cost(found)
    noise["against_full"]["per_solved_ratio"]["keys"]["high"] = 2.5
    assert "keys surely more in 1 (0 beyond the noise control)" in study_lengths.cost(found)
    full = {"cost": {"keys": 100.0}, "tokens": 100}
    for row in found["rows"]:
        row["cost"]["keys"] = row["tokens"] * (1.5 if row is h2o else 0.5)
    assert "1 read no fewer keys a token (h2o 64)." in study_lengths.cost({**found, "full": full})


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
    told = "loses no answer down to 64 keys (0 of 60: at most 6.0%), and is surely within 5% down "
    assert medium.endswith(told + "to 64.")
    assert retold.endswith("the oracle loses answers at every budget.")
    rows = document["levels"]["medium"]["at"]["8"]["rows"]
    next(row for row in rows if row["backend"] == "oracle")["against_full"]["ratio_solved"][
        "within"
    ] = False
    medium, _ = study_sentences.other_levels({"chosen": document})
    assert medium.endswith("and is surely within 5% nowhere.")


def test_an_oracle_is_free_from_the_largest_budget_down() -> None:
    ratio = {"estimate": 1.001, "low": None, "high": None}
    one = {"lost": 0, "gained": 0, "solved_other": 60, "ratio_solved": ratio}
    found: dict[str, Any] = {
        "rows": [{"backend": "oracle", "budget": budget, "against_full": {**one}}
                 for budget in (8, 16, 32, 64)],
        "sparsity_free": [8, 32, 64],
    }  # fmt: skip
    assert [row["budget"] for row in study_selecting.free_budgets(found)] == [64, 32]
    told = study_selecting.sparsity(found)
    assert "costs nothing" in told
    assert "at 32 keys a step, and at the 1 larger budgets: tokens 1.001, 0 answers lost" in told
    assert told.endswith("At smaller ones: 16: 0 lost; 8: 0 lost.")
    found["sparsity_free"] = []
    assert "at none of 4 budgets. At smaller ones: 64: 0 lost;" in study_selecting.sparsity(found)


@pytest.mark.parametrize(
    ("lost", "free", "said"),
    [
        (2, [64], "2 of 2 cells (a method at a budget) lose answers and 2 write longer"),
        (1, [64], "1 of 2 cells (a method at a budget) lose answers"),
        (2, [], "2 of 2 cells (a method at a budget) lose answers"),
    ],
)
def test_the_first_sentence_answers_where_the_rules_do(
    lost: int, free: list[int], said: str
) -> None:
    found = world(0.5)
    for at, row in enumerate(row for row in found["rows"] if row["role"] == "method"):
        row["against_full"] |= {"lost": 9, "gained": 0, "p_holm": 0.01 if at < lost else 0.5}
        longer = {"estimate": 1.2, "low": 1.1, "high": 1.4, "p_holm": 0.01}
        row["against_full"]["ratio_all"] |= longer
    found["sparsity_free"] = free
    told = study_sentences.answer(found)
    assert said in told
    assert ("It is not how few keys are read, but which" in told) == (lost == 2 and bool(free))


def test_what_is_not_the_same_held_out_is_named() -> None:
    null, effect = world(0.0), world(0.5)
    assert study_sentences.differences(effect, effect) == (
        "Of these 6 verdicts of (1), (1a) and (1b), 0 are not the same on the problems held out."
    )
    told = study_sentences.differences(effect, null)
    assert "(1) of h2o 64 says longer and, held out, nothing" in told
    assert "(1b) of h2o 64 says longer and, held out, nothing" in told
    assert "(1a)" not in told.partition(":")[2]


def test_verdicts_for_who_deploys_follow_the_intervals() -> None:
    def cell(
        change: tuple[float, float], keys: tuple[float, float], solved: int = 9, p: float = 0.01
    ) -> str:
        three = [
            {"estimate": sum(one) / 2, "low": one[0], "high": one[1]} for one in (change, keys)
        ]
        return study_advice.Judged("ground", "quest", "quest 64", *three, solved, 0.5, p).verdict

    assert cell((-0.04, 0.1), (0.5, 0.9)) == "keeps the answers, costs fewer keys"
    assert cell((-0.2, -0.01), (0.5, 1.1)) == "loses answers"
    assert cell((-0.2, -0.01), (0.5, 1.1), p=0.06) == "cannot be told"
    assert cell((-0.2, 0.01), (0.5, 1.1)) == "cannot be told"
    assert cell((-0.04, -0.01), (1.1, 1.2)) == "loses fewer than 5 points, costs more keys"
    assert cell((-0.9, -0.8), (0.0, 0.0), 0) == "loses answers, costs more keys"


def test_detectors_are_told_by_what_follows_where_few_honest_texts_are_stopped() -> None:
    share = {"estimate": 0.3, "low": 0.2, "high": 0.4}

    def row(
        detector: str, action: str, bound: bool, gained: int, p: float = 0.01
    ) -> dict[str, Any]:
        return {
            "dataset": "hard", "detector": detector, "action": action, "same_bound": bound,
            "of_full": 600, "n": 2400, "saved": share, "lost": 7, "gained": gained, "solved": 1200,
            "p_holm": p,
        }  # fmt: skip

    every = [row("cycle", "stop", True, 0), row("guardian", "stop", False, 0),
             row("cycle", "answer", True, 30), row("guardian", "answer", False, 9)]  # fmt: skip
    told = study_ending.detectors(every, {"rows": []})
    assert told == (
        "Of 2 detectors 1 stop no more than 1% of full attention's 600 texts, by the upper bound. "
        "Then stop, 2,400 texts: they spare 30% of tokens; of 1,200 right answers 7 are lost, 0 "
        "gained; surely more are gained than lost by 0 of 1, surely more lost than gained by 1. "
        "Then answer, 2,400 texts: they spare 30% of tokens; of 1,200 right answers 7 are lost, 30 "
        "gained; surely more are gained than lost by 1 of 1 (`cycle`), surely more lost than "
        "gained by 0."
    )
    told = study_ending.detectors([row("cycle", "answer", True, 30, 0.06)], {"rows": []})
    assert told.endswith("by 0 of 1, surely more lost than gained by 0.")
    told = study_ending.detectors(every[1:2], {"rows": []})
    assert told.endswith("600 texts, by the upper bound.")
    at = {"rows": [{"backend": "h2o", "kept": False, "role": "method", "n": 9, "tokens": 200,
                    "solved": 5}]}  # fmt: skip
    less = {"rows": [{**at["rows"][0], "tokens": 150, "solved": 3}]}
    told = study_ending.shorter_cap({**at, "smaller": {2: less}})
    assert told.endswith("of all 9 texts: at 2 times 25%, 2 lost.")


def test_trial_answers_are_told_with_their_test_and_full_attentions() -> None:
    share = {"estimate": 0.5, "low": 0.4, "high": 0.6}
    one = {"solved": share, "saved": share, "lost": 3, "gained": 30, "p": 0.01, "texts": 720,
           "reached": 700}  # fmt: skip
    full = {"ended_at_first": one | {"lost": 9, "gained": 0, "texts": 90}}
    at = {"pooled": {"solved": share | {"estimate": 0.2}, "ended_at_first": one}, "full": full}
    told = study_ending.trial_answers(at)
    assert "Of 720 texts, 700 of which state one, 50.0 [40.0, 60.0]% would be solved" in told
    assert "instead of 20.0 [40.0, 60.0]%, with 50.0 [40.0, 60.0]% fewer tokens: 3 answers" in told
    assert "lost and 30 gained, surely more gained. Under full attention 9 of 90 would be" in told
    assert "lost and 0 gained, surely more lost, with" in told
    one["p"] = 0.06
    assert "30 gained, which cannot be told apart." in study_ending.trial_answers(at)


def test_penalties_are_told_with_what_they_do_to_full_attention() -> None:
    share = {"estimate": 0.5, "low": 0.4, "high": 0.6}

    def row(name: str, bound: bool, lost: int, p: float) -> dict[str, Any]:
        return {
            "dataset": "hard", "penalty": name, "n": 400, "solved": 200, "lost": lost, "gained": 5,
            "p_holm": p, "saved": share, "loops": [2, 40], "same_bound": bound,
            "full": {"n": 600, "lost": 0 if bound else 90, "solved": 600, "lost_high": 0.006},
        }  # fmt: skip

    told = study_ending.penalties([row("lz", True, 30, 0.01), row("dry", False, 6, 1.0)])
    assert told.startswith(
        "Of 2 penalties 1 lose no more than 1% of full attention's answers, by the upper bound "
        "(`lz`). On the methods' texts at their middle budgets: `lz` spares 50.0 [40.0, 60.0]% of "
        "tokens, loses 30 of 200 right answers and gains 5, surely more lost, and 2 instead of 40 "
        "of 400 texts end in a loop (full attention: 0 of 600 lost, at most 0.6%)"
    )
    assert "`dry` spares" in told
    assert "loses 6 of 200 right answers and gains 5, which cannot be told apart" in told
    assert study_ending.penalties([]) == ""


def test_another_recipe_is_told_with_the_classes_that_surely_differ() -> None:
    def shares(low: float) -> dict[str, Any]:
        return {
            "lost": {"estimate": low + 0.1, "low": low, "high": low + 0.2},
            "loop": {"estimate": 0.1, "low": None, "high": None},
        }

    more = {"longer": {"estimate": 2.0, "low": 1.0, "high": 3.0}}
    shipped = world(0.0) | {"pooled": {"shares": shares(0.3)} | more}
    other = world(0.5) | {"pooled": {"shares": shares(0.0)} | more}
    full = {"full": {"8": {"n": 60}}}
    found: dict[str, Any] = {
        "chosen": {"caps": [8], "levels": {"hard": full | {"at": {"8": shipped}}}},
        "variants": {
            "without forget": {"caps": [8], "levels": {"hard": full | {"at": {"8": other}}}}
        },
    }
    (told,) = study_sentences.other_recipes(found)
    assert told.startswith("- (3a) Trained without forget, 60 problems: on all problems longer in ")
    assert told.endswith(
        "Of 2 classes of tokens beyond full attention's, 1 surely have another share than in the "
        "model that ships, by a point at least (Holm): lost 10.0 [0.0, 20.0]% (as it ships "
        "40.0 [30.0, 50.0]%); of 1 that is not said."
    )
    ((name, n, at),) = study_sentences.recipes(found)
    assert (name, n, at) == ("without forget", 60, other)
    nothing = (
        "0 surely have another share than in the model that ships, by a point at least (Holm); of "
        "2 that is not said."
    )
    little = {"lost": {"estimate": 0.396, "low": 0.395, "high": 0.397}}
    for apart in (shares(0.25), shares(0.3) | little):  # not surely; surely, and by too little
        other["pooled"]["shares"] = apart
        shipped["pooled"]["shares"]["lost"] |= {"low": 0.398, "high": 0.402}
        (told,) = study_sentences.other_recipes(found)
        assert told.endswith(nothing)
        shipped["pooled"]["shares"]["lost"] |= {"low": 0.3, "high": 0.5}
    # Each alone has p 0.03 and, of two, 0.06; beside one that is far apart it has 0.03 still.
    sure = {"estimate": 0.0, "low": 0.0, "high": 0.0}
    near = {"estimate": 0.1107, "low": 0.0107, "high": 0.2107}
    shipped["pooled"]["shares"] = {"lost": sure, "loop": sure}
    for lost, count in ((near, 0), ({"estimate": 0.5, "low": 0.4, "high": 0.6}, 2)):
        other["pooled"]["shares"] = {"lost": lost, "loop": near}
        (told,) = study_sentences.other_recipes(found)
        assert f"attention's, {count} surely have another share" in told
    other["pooled"] |= {"longer": {"estimate": 2.0, "low": -1.0, "high": 3.0}}
    (told,) = study_sentences.other_recipes(found)
    assert told.endswith("cannot be compared: one of them has none for sure.")


def test_in_brief_the_same_is_counted_as_in_full() -> None:
    share = {"estimate": 0.5, "low": 0.4, "high": 0.6}
    one = {"solved": share, "saved": share, "lost": 3, "gained": 30, "p": 0.01, "texts": 90}
    whole = {"ended_at_first": one | {"lost": 0, "gained": 0, "p": 1.0}}
    at = world(0.5, controls=True) | {"full": whole}
    at["pooled"] |= {"ended_at_first": one, "solved": share}
    h2o, quest = (next(row for row in at["rows"] if row["backend"] == name and not row["kept"])
                  for name in ("h2o", "quest"))  # fmt: skip
    h2o["against_full"] |= {"lost": 9, "gained": 0, "p_holm": 0.01}
    for cell, keys in ((h2o, (1.5, 1.9)), (quest, (0.5, 0.9))):
        low, high = keys
        cell["against_full"]["per_solved_ratio"]["keys"] = {
            "estimate": 1.0, "low": low, "high": high
        }  # fmt: skip
    at["random"] = [
        {"backend": "h2o", "budget": 64, "lost": 9, "gained": 0, "p_holm": 0.01},
        {"backend": "quest", "budget": 64, "lost": 0, "gained": 9, "p_holm": 0.01},
        {"backend": "sink", "budget": 64, "lost": 0, "gained": 9, "p_holm": 0.2},
    ]
    recipes = [("without forget", 60, at)]
    lines = {line.split("**")[1]: line for line in study_brief.brief(at, None, [], recipes)}
    assert lines["A model trained without forget"].endswith(
        "), 60 problems: answers are lost in 1 of 2 cells and gained in 0; texts are, on all "
        "problems, longer in 1 and shorter in 0. (3a)"
    )
    assert "lost in 1 of 2 cells, 15 points of accuracy, and gained in 0." in lines["Answers"]
    assert "Answers are lost in 1 of 2 cells, 15 points" in study_lengths.correct(at)
    assert "on all problems longer in 1 (1." in lines["Texts"]
    assert "longer than full attention's in 1 of 2 cells" in study_lengths.all_lengths(at)
    assert "before it first stands in 0 of 2 cells, more tokens after it in 1." in lines["When"]
    assert "tokens after it in 1, " in study_lengths.until(at)
    assert "fewer problems than 1 of 3 cells and more than 1." in lines["A random sample"]
    told = lines["Keys read per solved problem"]
    assert "surely more than full attention's in 1 of 2 cells, fewer in 1." in told
    assert "keys surely more in 1 (" in study_lengths.cost({**at, "full": None})
    told = lines["Ending at the first value stated"]
    assert ", right or wrong, would give answers back: 50.0 [40.0, 60.0]% of texts" in told
    assert "(full attention: 0 lost, 0 gained). (6b)" in told
    for lost, p, words in ((60, 0.01, "would lose more answers"), (3, 0.2, "is not told apart")):
        at["pooled"]["ended_at_first"] = one | {"lost": lost, "p": p}
        assert words in study_brief.trial(at)
    held = world(0.0) | {"full": whole}
    held["pooled"] |= {"ended_at_first": one, "solved": share}
    told = "\n".join(study_brief.brief(at, held, []))
    assert "Held out: are, of 2 cells, on all problems longer in 0, shorter in 0; " in told
    assert "Held out: cannot be said: over all cells texts are not surely longer. (4)" in told


def test_in_brief_a_penalty_that_loses_answers_is_told_so() -> None:
    share = {"estimate": 0.5, "low": 0.4, "high": 0.6}
    row = {"penalty": "lz", "same_bound": True, "lost": 30, "gained": 9, "p_holm": 0.01,
           "saved": share, "n": 9, "full": {"n": 9}}  # fmt: skip
    none: dict[str, Any] = {"n": 0, "full": {"n": 9}, "saved": None, "same_bound": True}
    assert study_brief.strongest([row, row | {"same_bound": False}, none]) == (
        "**Penalties**: 1 of 2 leave full attention its answers; on the methods' texts 0 of these "
        "surely gain answers, 1 surely lose some, and 1 surely spare tokens: `lz` 50.0 [40.0, "
        "60.0]%."
    )
    assert study_brief.strongest([none]) == study_ending.penalties([none]) == ""


def test_of_levels_without_controls_nothing_is_said_of_them() -> None:
    at = world(0.5)
    at["rows"] = [row for row in at["rows"] if row["backend"] not in ("oracle", "dither")]
    told = study_selecting.other_level(at)
    assert "longer in 1 of 2 cells (no noise control was decoded)" in told
    assert told.endswith("no oracle was decoded.")
    assert "beyond" not in told
