"""Choices of blocks at a tie: which are such, and which explain another token."""

from __future__ import annotations

from typing import Any

import choice_ties
import pytest
import torch
from choice_ties import CHOICE_TIE, Choice, TiedChoices, tied_choices
from compare_stores import Parting

from experiments.grid import models

INFLLM = {"name": "infllm", "block": 4, "n_init": 4, "topk": 1, "repr_topk": 4, "budget": 20}
QUEST = {"name": "quest", "page": 4, "dense_layers": 0, "budget": 20}
REPEATED = [*range(20, 28)] * 8
ONCE = [*range(10, 60)]


@pytest.fixture(scope="module")
def model() -> Any:
    return models.load(models.find("reasoner"), "float32", "cpu").model


def parting(method: dict[str, Any], common: list[int], tokens: tuple[int, int]) -> Parting:
    return Parting("", {"backend": method}, (5, 6), common, 0, tokens)


def test_blocks_of_the_same_tokens_are_worth_the_same_to_infllm_alone(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are as they were before they were turned to their positions."""
    monkeypatch.setattr(choice_ties, "TRIED", 2)
    found = tied_choices(model, parting(INFLLM, REPEATED, (1, -1)))
    assert found.count > 10
    assert found.closest is not None
    assert found.closest <= CHOICE_TIE
    assert not found.traced
    for method, text in ((INFLLM, ONCE), (QUEST, REPEATED)):
        found = tied_choices(model, parting(method, text, (1, -1)))
        assert found.count == 0
        assert found.closest is not None
        assert found.closest > 10 * CHOICE_TIE


def test_a_window_chooses_nothing(model: Any) -> None:
    found = tied_choices(model, parting({"name": "window", "budget": 8}, [7] * 20, (1, 2)))
    assert (found.closest, found.count, found.traced) == (None, 0, False)


def test_one_choice_made_the_other_way_round_changes_what_comes_behind_it(model: Any) -> None:
    some = parting(QUEST, ONCE[:30], (1, 2))
    choices, (row,) = choice_ties._read(model, some)
    one = choices[len(choices) // 2]
    assert 0 not in one.others

    def otherwise(each: Choice) -> int | None:
        return 0 if each.place == one.place else None

    turned, (other,) = choice_ties._read(model, some, [otherwise])
    assert not torch.equal(row, other)
    before = [each for each in choices if each.call <= one.call]
    assert [each for each in turned if each.call <= one.call] == before
    # The block that was left out is read now, and the other is not.
    assert turned != choices
    # Ways are read side by side, and each has its own.
    both, (same, again) = choice_ties._read(model, some, [choice_ties.as_it_is, otherwise])
    assert [each.place for each in both] == [each.place for each in choices]
    for mine, alone in ((same, row), (again, other)):
        torch.testing.assert_close(mine, alone, rtol=0, atol=1e-4)
    assert float((same - again).abs().max()) > 1e-2


def test_a_tie_is_traced_to_the_token_that_it_gives(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only ties are tried: all at once, then each, the latest first, and no more than so many."""
    tie = Choice(0.0, 3, 1, (5, 8))
    later, apart = Choice(5e-7, 9, 0, (4,)), Choice(1e-3, 20, 0)
    choices = [tie, later, apart]
    given = {(5, 4, None): 7, (8, 4, None): 6, (None, 4, None): 4, (8, None, None): 3}
    tried: list[tuple[int | None, ...]] = []
    beside = 2

    def read(_model: Any, _parting: Any, ways: Any = (choice_ties.as_it_is,)) -> Any:
        assert ways[0] is choice_ties.as_it_is
        tried.extend(tuple(map(way, choices)) for way in ways[1:])
        rows = [given.get(tuple(map(way, choices)), 2) for way in ways]
        rows[0] = beside if len(ways) > 1 else 2
        return choices, [torch.nn.functional.one_hot(torch.tensor(one), 10) for one in rows]

    def traced(mine: int, theirs: int) -> bool:
        return tied_choices(model, parting(QUEST, ONCE, (mine, theirs))).traced

    monkeypatch.setattr(choice_ties, "_read", read)
    found = tied_choices(model, parting(QUEST, ONCE, (2, 4)))
    assert found == TiedChoices(0.0, 2, traced=True)
    assert tried == [
        (5, 4, None), (8, 4, None), (None, 4, None), (5, None, None), (8, None, None)
    ]  # fmt: skip
    # Any block of equal worth may have been the other's choice; what is no tie explains nothing.
    assert traced(2, 3)
    assert traced(2, 6)
    assert traced(2, 7)
    assert not traced(2, 9)
    # Where the text read again has another token than this run wrote, nothing is known.
    assert not traced(1, 4)
    assert not traced(4, 2)
    monkeypatch.setattr(choice_ties, "TRIED", 2)
    assert not traced(2, 4)
    assert traced(2, 6)
    # Where the text as it is parts when it is read beside others, no choice is to be blamed.
    beside = 6
    assert not traced(2, 6)
