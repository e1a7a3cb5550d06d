"""A text read again with other last bits: what rounding decides, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
import rounded_readings
import torch
from choice_ties import backend_of
from compare_stores import Parting, scores
from rounded_readings import READINGS, RoundedReadings
from rounded_readings import rounded_readings as read_again

import lil
from experiments.grid import models

QUEST = {"name": "quest", "page": 4, "dense_layers": 0, "budget": 20}
PROMPT = tuple(range(5, 25))


@pytest.fixture(scope="module")
def loaded() -> Any:
    return models.load(models.find("reasoner"), "float32", "cpu")


@pytest.fixture(scope="module")
def model(loaded: Any) -> Any:
    return loaded.model


def parting(common: tuple[int, ...], tokens: tuple[int, int], reused: int = 0) -> Parting:
    return Parting("", {"backend": QUEST}, PROMPT, common, reused, tokens)


@pytest.fixture(scope="module")
def greedy(loaded: Any) -> tuple[int, ...]:
    """What `lil.decode` writes, under the same method."""
    backend = backend_of(parting((), (0, 0)))
    prompts, stop = [list(PROMPT)], {"max_new_tokens": 40}
    (one,) = lil.decode(loaded.model, loaded.tokenizer, prompts, backend=backend, **stop)
    found: tuple[int, ...] = one.new_ids
    return found


@pytest.mark.parametrize("reused", [0, 7])
def test_last_bits_decide_nothing_where_one_token_is_far_likelier(
    model: Any, greedy: tuple[int, ...], reused: int
) -> None:
    *common, mine = greedy[:30]
    some = parting(tuple(common), (mine, mine + 1), reused)
    found = read_again(model, some)
    assert found == RoundedReadings(READINGS, READINGS, 0, 0)
    assert not found.both
    # What is changed in the model is changed for these readings alone.
    (one,), (two,) = (scores(model, backend_of(some), [some], "torch") for _ in "ab")
    assert torch.equal(one, two)


def test_another_token_in_the_text_is_counted(model: Any, greedy: tuple[int, ...]) -> None:
    *common, mine = greedy[:30]
    common[20] = (common[20] + 1) % 64
    found = read_again(model, parting(tuple(common), (mine, mine)))
    assert found.changed >= 1
    known = read_again(model, parting(tuple(common), (mine, mine), reused=21))
    assert known.changed == found.changed - 1


def test_where_last_bits_decide_either_token_may_come(
    model: Any, greedy: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading has its own; the larger the changes, the more tokens they decide."""
    monkeypatch.setattr(rounded_readings, "LAST_BIT", 0.3)
    common = greedy[:30]
    likeliest = rounded_readings._likeliest(model, parting(common, (0, 0)), 0)
    assert likeliest.shape == (31, READINGS)
    some = next(row for row in likeliest.flip(0) if len(row.unique()) > 1)
    at = len(likeliest) - 1 - [torch.equal(row, some) for row in likeliest.flip(0)].index(True)
    one, two = some.unique()[:2].tolist()
    found = read_again(model, parting(common[:at], (one, two)))
    assert found.both
    assert (found.mine, found.theirs) == (int((some == one).sum()), int((some == two).sum()))
    assert found.changed > 0
    absent = min(set(range(64)) - set(some.tolist()))
    for tokens in ((one, absent), (absent, one)):
        assert not read_again(model, parting(common[:at], tokens)).both


def test_another_order_of_a_sum_changes_most_outputs_by_more(model: Any) -> None:
    """In every linear layer."""
    shares: list[float] = []

    def watched(layer: torch.nn.Linear, given: tuple[torch.Tensor], out: torch.Tensor) -> None:
        assert layer.bias is None
        order = torch.randperm(given[0].shape[-1], generator=torch.Generator().manual_seed(1))
        other = given[0][..., order] @ layer.weight[:, order].T
        larger = (other - out).abs() > rounded_readings.LAST_BIT * out.abs()
        shares.append(float(larger.float().mean()))

    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    hooks = [layer.register_forward_hook(watched) for layer in layers]
    with torch.inference_mode():
        model(torch.tensor([PROMPT]))
    for hook in hooks:
        hook.remove()
    assert len(shares) == len(layers) > 30
    assert min(shares) > 0.5


def test_a_model_without_layers_to_change_is_not_taken_as_certain() -> None:
    with (
        pytest.raises(RuntimeError, match="no linear layer"),
        rounded_readings._last_bits(torch.nn.ReLU(), 0),
    ):
        pass
